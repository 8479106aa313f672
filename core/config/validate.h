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

// --- Products of a job's sizes, checked before anybody multiplies (sizes.cpp).

// The ranks of the mesh, but for dp_shard: 0 where they are more than an int counts.
int64_t ranks_beside_dp_shard(const DistributedSection& distributed);

// Reports, at the keys that are multiplied, what would not fit: ranks, tokens of a microbatch and of a step,
// actions of a schedule, parameters, activations of a microbatch. Where it gives true, all of these can be
// computed in 64 bits (in 32 where ranks, positions and actions are counted) without overflow.
// `document.job` has its model's sizes; those that are 0, missing, make no product.
bool check_products(Document& document);

// --- What cannot be shared out over the ranks of a mesh: heads, widths, experts and tokens
// (layout_rules.cpp).

// Reports each axis of [distributed] that does not divide what its ranks share out. The loader and the search
// over meshes ask this one function. Sizes that are missing (0) are reported elsewhere.
void check_layout(const JobConfig& job, const ReportConflict& report);

// Has a layer an MLP of intermediate_size? The layers of mixtral and gpt_oss all have experts; those of
// other models with experts have them but for those that decoder_sparse_step and mlp_only_layers name.
bool has_dense_layers(const ModelSection& model);

}  // namespace pptrain::config
