// Runs the passes of one step over stages in one process, for loss and gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "core/data/microbatch.h"
#include "parallel/pipeline/stage.h"
#include "test/core/nn/late_side_stream.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

namespace pptrain::test {

enum class Backward { at_once, beside, split };  // B; B with late weight gradients; every I, then every W

struct StageStep {
  double loss = 0;
  std::map<std::string, at::Tensor> grads;
};

// `stages` hold the whole model, in order.
inline StageStep run_step(Stages& stages, const std::vector<data::Microbatch>& batches, Backward backward) {
  const int m = static_cast<int>(batches.size());
  LateSideStream side;
  if (backward == Backward::beside) {
    for (auto& stage : stages) stage->overlap_weight_gradients(side);
  }
  for (int i = 0; i < m; ++i) {
    at::Tensor x;
    for (auto& stage : stages) x = stage->forward(i, batches[static_cast<size_t>(i)], x);
    CHECK(!x.defined());
  }
  for (auto& stage : stages) CHECK(stage->saved_bytes() > 0);
  for (int i = 0; i < m; ++i) {
    at::Tensor dy;
    for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
      dy = backward == Backward::split ? (*stage)->backward_input(i, dy) : (*stage)->backward(i, dy);
      CHECK(side.waiting() == 0);
    }
    CHECK(!dy.defined());
  }
  CHECK((side.ran() > 0) == (backward == Backward::beside));
  if (backward == Backward::split) {
    for (auto& stage : stages) {
      CHECK(stage->pending_bytes() > 0);
      for (int i = 0; i < m; ++i) stage->backward_weight(i);
    }
  }
  StageStep result{.loss = stages.back()->take_loss(), .grads = {}};
  for (auto& stage : stages) {
    CHECK(stage->saved_bytes() == 0);
    CHECK(stage->pending_bytes() == 0);
    for (const nn::Slice* p : stage->parameters().slices()) {
      CHECK(p->grad.defined() != p->spec.frozen);
      if (!p->spec.frozen) result.grads[p->spec.name] = p->grad;
    }
  }
  return result;
}

}  // namespace pptrain::test
