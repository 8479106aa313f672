// Contradictions between options, and files that must exist.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/config/document.h"
#include "core/config/job_config.h"
#include "core/config/loader.h"

namespace pptrain::config {

// --- What a job may well mean, but most do not.

// One sentence each, of a resolved job; none where there is nothing to say.
std::vector<std::string> warnings(const JobConfig& job);

// Takes the model from model.hf_dir, if given: what the job leaves out is filled in, what it contradicts is
// reported.
void apply_hf_dir(Document& document, const ReadHfConfig& read_hf_config);

// Puts what the other axes leave of `world` ranks in the place of dp_shard = -1 (or dp = -1). Reported where
// they leave no whole number, or `world` is 0: not known.
void fill_world(Document& document, int64_t world);

// Reports each contradiction at the option that the user is most likely to change, and with `needs_files`
// what of data, weights and checkpoints is not there.
void validate(Document& document, bool needs_files);

// Of a job without problems: folds dp into dp_shard, and returns options that have nothing to act on to
// their defaults.
void resolve(JobConfig& job);

}  // namespace pptrain::config
