// Which part of the model a stage holds.
#pragma once

#include "models/model_config.h"
#include "parallel/pipeline/split_layers.h"

namespace pptrain::models {

struct StageSlice {
  int index = 0;
  int first_layer = 0;
  int end_layer = 0;  // one past the last
  bool embedding = false;
  bool head = false;  // with the final norm
  // Pipeline ranks that the head's vocabulary is sharded over. With more than one, the stage with `head` has
  // only the norm, and the first stage of each rank has a part of the vocabulary, in the order of these
  // stages.
  int head_parts = 1;
  // The embedding's state is sharded over them too (parallel/pipeline/embedding_shards.h): the first stage of
  // each rank declares the embedding's parameters, though only stage 0 embeds tokens.
  bool embedding_in_shards = false;

  bool has_head_part() const { return head_parts > 1 && index < head_parts; }
  bool has_whole_head() const { return head && head_parts == 1; }
  bool has_embedding_shard() const { return embedding_in_shards && has_head_part(); }
};

// The model as one stage.
inline StageSlice whole_model(const ModelConfig& model) {
  return {.index = 0,
          .first_layer = 0,
          .end_layer = static_cast<int>(model.layers),
          .embedding = true,
          .head = true};
}

// Stage `index` of the assignment; the embedding is on stage 0, the head on the last one or in parts.
inline StageSlice stage_slice(const pipeline::LayerAssignment& assignment, int index, int head_parts = 1,
                              bool embedding_in_shards = false) {
  const auto& [start, end] = assignment.at(static_cast<size_t>(index));
  return {.index = index,
          .first_layer = start,
          .end_layer = end,
          .embedding = index == 0,
          .head = static_cast<size_t>(index) + 1 == assignment.size(),
          .head_parts = head_parts,
          .embedding_in_shards = embedding_in_shards};
}

}  // namespace pptrain::models
