// The model as one stage.
#pragma once

#include "models/model_config.h"
#include "models/transformer_stage.h"

namespace pptrain::models {

inline StageSlice whole_model(const ModelConfig& model) {
  return {.index = 0,
          .first_layer = 0,
          .end_layer = static_cast<int>(model.layers),
          .embedding = true,
          .head = true};
}

}  // namespace pptrain::models
