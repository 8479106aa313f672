// A block and its parallelism: other ranks' attention and feed-forward take part in both passes.
#include "models/block.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cstddef>
#include <map>
#include <string>

#include "core/base/error.h"
#include "core/nn/rope.h"
#include "models/decoder.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

struct Passes {
  Tensor y, dx;
  std::map<std::string, Tensor> gradients;  // by parameter: this rank's, at their place among zeros
};

std::map<std::string, Tensor> gradients_of(nn::ParameterGroup& group) {
  std::map<std::string, Tensor> all;
  for (const nn::Slice* slice : group.slices()) {
    Tensor box = all[slice->spec.name] = at::zeros(slice->spec.shape);
    for (size_t d = 0; d < slice->shape.box.size(); ++d)
      box = box.narrow(static_cast<int64_t>(d), slice->shape.offset[d], slice->shape.box[d]);
    box.copy_(slice->grad);
  }
  return all;
}

Passes run(const models::BlockConfig& config, const models::StageParallelism& parallelism,
           const nn::TokenInfo& tokens, const Tensor& x, const Tensor& dy, nn::WeightGradQueue::Mode mode,
           config::Recompute recompute) {
  const c10::InferenceMode inference;
  nn::ParameterGroup group;
  models::Block block(group, "layers.0", config, parallelism);
  group.materialise(at::kCPU, at::kFloat);
  group.initialise(3);
  models::Block::Saved saved;
  saved.recompute = recompute;
  models::Residual out = block.forward({.stream = x.clone(), .delta = {}}, tokens, saved);
  nn::WeightGradQueue queue(mode);
  Passes passes{.y = out.stream + out.delta,
                .dx = block.backward_input(saved, dy.clone(), tokens, queue),
                .gradients = {}};
  for (const Tensor& tensor : models::saved_tensors(saved)) {
    if (tensor.defined()) throw Error("a backward pass left a tensor of the forward pass");
  }
  queue.run();
  passes.gradients = gradients_of(group);
  return passes;
}

}  // namespace

TEST_CASE("a block of ranks that share out its rows and insides gives the rows of one alone") {
  at::set_num_threads(1);
  const auto recompute = GENERATE(config::Recompute::none, config::Recompute::cheap,
                                  config::Recompute::selective, config::Recompute::full);
  const auto mode = GENERATE(nn::WeightGradQueue::Mode::immediate, nn::WeightGradQueue::Mode::deferred);
  models::ModelConfig model = small_model("qwen3", false);
  model.heads = 4;
  model.kv_heads = 2;
  models::BlockConfig config = models::block_config(model, 0);
  config.init_std = config.attention.init_std = config.attention.o_init_std = 0.2;
  const data::Microbatch data = random_documents(model, {5, 8}, 1);
  const nn::TokenInfo tokens{
      .positions = data.positions,
      .segments = data.segments,
      .ropes = {{nn::make_rope_table({.dim = model.head_dim, .theta = model.rope_theta}, model.max_seq,
                                     at::kCPU)}}};
  const Tensor x = at::randn({13, model.hidden}), dy = at::randn({13, model.hidden});
  const Passes plain = run(config, {}, tokens, x, dy, mode, recompute);
  Passes ranks[2];
  comm::run_thread_ranks(2, [&](comm::Communicator& tp) {
    at::set_num_threads(1);
    const auto r = static_cast<size_t>(tp.rank());
    const nn::TensorShard cut{.rank = tp.rank(), .size = 2};
    const auto own = [&](const Tensor& rows) {
      return rows.narrow(0, cut.begin(13, cut.rank), cut.count(13));
    };
    ranks[r] =
        run(config, models::make_stage_parallelism({.tp = &tp}), tokens, own(x), own(dy), mode, recompute);
  });
  CHECK(relative_error(test::cat({ranks[0].y, ranks[1].y}), plain.y) < gradient_tolerance);
  CHECK(relative_error(test::cat({ranks[0].dx, ranks[1].dx}), plain.dx) < gradient_tolerance);
  REQUIRE(plain.gradients.size() > 5);
  for (const auto& [name, gradient] : plain.gradients) {
    CAPTURE(name);
    CHECK(relative_error(ranks[0].gradients.at(name) + ranks[1].gradients.at(name), gradient) <
          gradient_tolerance);
  }
}
