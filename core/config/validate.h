// Contradictions between options, and files that must exist.
#pragma once

#include "core/config/document.h"

namespace pptrain::config {

// Takes the model from model.hf_dir, if given: what the job leaves out is filled in, what it contradicts is
// reported.
void apply_hf_dir(Document& document);

// Reports each contradiction at the option that the user is most likely to change.
void validate(Document& document);

// Of a job without problems: folds dp into dp_shard, sets what 0 stands for (num_key_value_heads, head_dim,
// max_position_embeddings), and returns options that have nothing to act on to their defaults.
void resolve(JobConfig& job);

}  // namespace pptrain::config
