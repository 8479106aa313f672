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

// One sentence each, of a resolved job; none if there is nothing to say.
std::vector<std::string> warnings(const JobConfig& job);

// Takes the model from model.hf_dir, if given: what the job leaves out is filled in, what it contradicts is
// reported.
void apply_hf_dir(Document& document, const ReadHfConfig& read_hf_config);

// Replaces dp_shard = -1 (or dp = -1) by what the other axes leave of `world` ranks. Reports an error if they
// leave no whole number, or if `world` is 0: not known.
void fill_world(Document& document, int64_t world);

// Reports each contradiction at the option that the user is most likely to change, and with `needs_files`
// what of data, weights and checkpoints is not there.
void validate(Document& document, bool needs_files);

// For a job without problems: folds dp into dp_shard, and returns options that have nothing to act on to
// their defaults.
void resolve(JobConfig& job);

// --- Products of a job's sizes, checked before they are computed (sizes.cpp).

// The ranks of the mesh without dp_shard: 0 if they are more than an int counts.
int64_t ranks_beside_dp_shard(const DistributedSection& distributed);

// Reports, at the keys that are multiplied, what would not fit: ranks, tokens of a microbatch and of a step,
// actions of a schedule, parameters, activations of a microbatch. If it returns true, all of these can be
// computed in 64 bits without overflow (ranks, positions and actions in 32). `document.job` has its model's
// sizes; sizes that are 0, missing, make no product.
bool check_products(Document& document);

// --- What cannot be divided among the ranks of a mesh: heads, widths, experts and tokens (layout_rules.cpp).

// Reports each axis of [distributed] that does not divide what its ranks shard. The loader and the search
// over meshes ask this one function. Sizes that are missing (0) are reported elsewhere.
void check_layout(const JobConfig& job, const ReportConflict& report);

// Does any layer have an MLP of intermediate_size? In mixtral and gpt_oss all layers have experts instead; in
// other models with experts, only the layers left out by decoder_sparse_step and mlp_only_layers have one.
bool has_dense_layers(const ModelSection& model);

}  // namespace pptrain::config
