// The seams of a block: what is put around attention and feed-forward takes part in both passes.
#include "models/block.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <memory>
#include <utility>
#include <vector>

#include "core/nn/rope.h"
#include "models/registry.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// Rows in another order inside of the region than outside, as under sequence parallelism, where a rank's rows
// come from several. Outside: row i is row permutation[i] of inside.
class Permuted final : public nn::Region {
 public:
  explicit Permuted(Tensor inside_of_outside)
      : order_(std::move(inside_of_outside)), inverse_(at::argsort(order_)) {}

  Tensor enter(Tensor x) const override { return x.index_select(0, inverse_); }
  Tensor leave(Tensor y) const override { return y.index_select(0, order_); }
  Tensor leave_backward(const Tensor& dy) const override { return dy.index_select(0, inverse_); }
  Tensor enter_backward(Tensor dx) const override { return dx.index_select(0, order_); }

 private:
  Tensor order_, inverse_;
};

struct Passes {
  Tensor y, dx, gradients;
};

Passes run(const models::BlockConfig& config, const models::Seams& seams, const nn::TokenInfo& tokens,
           const Tensor& x, const Tensor& dy, nn::WeightGradQueue::Mode mode) {
  const c10::InferenceMode inference;
  nn::ParameterGroup group;
  models::Block block(group, "layers.0", config, seams);
  group.materialise(at::kCPU, at::kFloat);
  group.initialise(3);
  models::Block::Saved saved;
  models::Residual out = block.forward({.stream = x.clone(), .delta = {}}, tokens, saved);
  nn::WeightGradQueue queue(mode);
  Passes passes{.y = out.stream + out.delta,
                .dx = block.backward_input(saved, dy.clone(), tokens, queue),
                .gradients = {}};
  for (const Tensor& tensor : models::saved_tensors(saved)) CHECK_FALSE(tensor.defined());
  queue.run();
  passes.gradients = all_gradients(group);
  return passes;
}

}  // namespace

TEST_CASE("a region's order of rows is what attention and feed-forward see, in both passes") {
  at::set_num_threads(1);
  const auto recompute = GENERATE(models::Recompute::none, models::Recompute::cheap,
                                  models::Recompute::selective, models::Recompute::full);
  const auto mode = GENERATE(nn::WeightGradQueue::Mode::immediate, nn::WeightGradQueue::Mode::deferred);
  const models::ModelConfig model = small_model("qwen3", false);
  models::BlockConfig config = models::find_architecture("qwen3").block(model);
  config.recompute = recompute;
  config.init_std = config.attention.init_std = config.attention.o_init_std = 0.2;
  const data::Microbatch data = random_documents(model, {5, 8}, 1);
  const nn::TokenInfo tokens{
      .positions = data.positions,
      .segments = data.segments,
      .rope = nn::make_rope_table(model.head_dim, model.max_seq, model.rope_theta, {}, {}, at::kCPU)};
  const Tensor x = at::randn({13, model.hidden}), dy = at::randn({13, model.hidden});
  const Tensor order = at::randperm(13, at::kLong);
  const Passes plain = run(config, {}, tokens, x, dy, mode);

  // The stream outside is permuted too: results are the plain ones in that order.
  models::Seams seams;
  seams.region = seams.mlp_region = std::make_shared<Permuted>(order);
  const Passes permuted =
      run(config, seams, tokens, x.index_select(0, order), dy.index_select(0, order), mode);
  CHECK(relative_error(permuted.y, plain.y.index_select(0, order)) < 1e-5);
  CHECK(relative_error(permuted.dx, plain.dx.index_select(0, order)) < 1e-5);
  CHECK(relative_error(permuted.gradients, plain.gradients) < 1e-5);
  // Without the region they are not.
  const Passes wrong = run(config, {}, tokens, x.index_select(0, order), dy.index_select(0, order), mode);
  CHECK(relative_error(wrong.y, plain.y.index_select(0, order)) > 1e-3);
}
