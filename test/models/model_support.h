// Small models, data for them, and a training step by hand, for the tests of models/.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/data/microbatch.h"
#include "models/model_config.h"
#include "models/transformer_stage.h"

namespace pptrain::test {

// Four layers of odd sizes: heads * head_dim != hidden, grouped keys and values.
models::ModelConfig small_model(const std::string& arch, bool tied);

// `count` microbatches of different shapes, tokens and labels at random, some labels ignored, and positions that do not
// all start at 0.
std::vector<data::Microbatch> random_microbatches(const models::ModelConfig& model, int count);

using Stages = std::vector<std::unique_ptr<models::TransformerStage>>;

// The model as `stages` pieces on the CPU, weights from a fixed seed with norms and biases made random too.
Stages build_stages(const models::ModelConfig& model, int stages, at::ScalarType type);

// F of one microbatch through all stages; the boundary tensors are checked.
void forward(Stages& stages, int microbatch, const data::Microbatch& data);

enum class Backward { whole, split };

// Its backward from the last stage to the first: B, or I and W, the Ws after all Is.
void backward(Stages& stages, int microbatch, Backward how);

// Every parameter's main gradient by global name.
std::map<std::string, at::Tensor> gradients(Stages& stages);

}  // namespace pptrain::test
