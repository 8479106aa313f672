// Contradictions between options, and files that must exist.
#pragma once

#include "core/config/document.h"
#include "core/config/loader.h"

namespace pptrain::config {

// Takes the model from model.hf_dir, if given: what the job leaves out is filled in, what it contradicts is
// reported.
void apply_hf_dir(Document& document, const ReadHfConfig& read_hf_config);

// Reports each contradiction at the option that the user is most likely to change.
void validate(Document& document);

// Of a job without problems: folds dp into dp_shard, and returns options that have nothing to act on to
// their defaults.
void resolve(JobConfig& job);

}  // namespace pptrain::config
