// Rotary tables for sequences that grow beyond those of training.
#pragma once

#include <algorithm>

#include "core/config/job_config.h"
#include "models/model_config.h"

namespace pptrain::app {

// The model with tables for all positions that it is meant for (model.max_position_embeddings), not only for
// those of train.seq_len.
inline models::ModelConfig with_all_positions(models::ModelConfig model, const config::JobConfig& job) {
  model.max_seq = std::max(model.max_seq, job.model.max_position_embeddings);
  return model;
}

}  // namespace pptrain::app
