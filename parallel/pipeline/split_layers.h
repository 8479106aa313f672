// The layers of each pipeline stage. Without Torch.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pptrain::pipeline {

// [start, end) of each stage, in stage order; together they cover [0, layers).
using LayerAssignment = std::vector<std::pair<int, int>>;

// The assignment that gives each stage so many layers, and back.
LayerAssignment from_counts(std::span<const int64_t> layers_per_stage);
std::vector<int64_t> layers_per_stage(const LayerAssignment& assignment);

// An even split; the remaining layers go to earlier stages: (32, 3) -> 11/11/10. The embedding counts as
// `embedding_weight` layers on the first stage, final norm and head as `head_weight` layers on the last. Each
// layer goes to the stage with the least load so far, earlier stages first: this gives the smallest largest
// load. (The weights are those of xorl's and d9d's virtual layers, fractions allowed.) Throws UsageError if a
// stage would hold no layer.
LayerAssignment compute_layer_assignment(int layers, int stages, double embedding_weight = 0,
                                         double head_weight = 0);

// An explicit list of layers per stage, first to last. Throws UsageError if it does not have `stages`
// entries, one of them is below 1, or they do not sum to `layers`.
LayerAssignment explicit_layer_assignment(int layers, int stages, std::span<const int64_t> layers_per_stage);

// A layout string: stages separated by '|', each the number of its layers, or '*' for an even share (more on
// earlier stages) of the layers that the others leave: "1|*|*|1". Or in the manner of Megatron-LM's
// pipeline_model_parallel_layout: t is a layer, E the embedding (first stage only), L the head (last stage
// only): "Ett|ttt|ttL". In both, (...)*N repeats a group and t*N a layer: "Et|(tt|)*6tL"; commas and spaces
// mean nothing. Throws UsageError as explicit_layer_assignment does, and for text that is not a layout.
LayerAssignment layout_layer_assignment(int layers, int stages, const std::string& layout);

}  // namespace pptrain::pipeline
