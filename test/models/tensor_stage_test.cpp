// Stages on tensor-parallel ranks against the same stages on one rank.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "app/forecast/footprint.h"
#include "core/base/error.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/kernels/compare.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;
using config::Recompute;

namespace {

struct Job {
  models::ModelConfig model;
  std::vector<int64_t> split;
  at::ScalarType dtype = at::kFloat;
  Recompute recompute = Recompute::none;
  bool split_backward = false;  // I, then W
};

// 2, 3 and 4 divide the heads; none of them divides the vocabulary.
models::ModelConfig shared_model(const std::string& arch, bool tied, int64_t kv_heads) {
  models::ModelConfig model = small_model(arch, tied);
  model.heads = 12;
  model.kv_heads = kv_heads;
  model.head_dim = 8;
  model.intermediate = 48;
  return model;
}

std::vector<data::Microbatch> microbatches(const models::ModelConfig& model) {
  return {random_documents(model, {5, 1, 8, 3}, 2), random_documents(model, {16, 7}, 3)};
}

// The results of a step on one rank.
struct Share {
  // By microbatch and boundary: outputs of all stages but the last, gradients of all inputs but the first.
  std::vector<Tensor> outputs, input_gradients;
  double loss = 0;
  Tensor logits;
  // By parameter: this rank's gradient at its box's place among zeros, and whether the box is counted.
  std::map<std::string, Tensor> grads, masters, counted;
};

Tensor& box_of(std::map<std::string, Tensor>& whole, const nn::Slice& slice, Tensor& box) {
  Tensor& tensor = whole[slice.spec.name] = at::zeros(slice.spec.shape);
  box = tensor;
  for (size_t d = 0; d < slice.shape.box.size(); ++d)
    box = box.narrow(static_cast<int64_t>(d), slice.shape.offset[d], slice.shape.box[d]);
  return tensor;
}

void collect(Stages& stages, Share& share) {
  for (auto& stage : stages) {
    for (const nn::Slice* slice : stage->parameters().slices()) {
      if (slice->spec.frozen) continue;
      Tensor box;
      box_of(share.grads, *slice, box);
      box.copy_(slice->grad);
      box_of(share.counted, *slice, box);
      box.fill_(slice->spec.counted ? 1 : 0);
      box_of(share.masters, *slice, box);
      if (slice->spec.counted) box.copy_(slice->master);
    }
  }
}

void run_microbatch(Stages& stages, int i, const data::Microbatch& data, bool split_backward, Share& share) {
  Tensor x;
  for (auto& stage : stages) {
    if (x.defined() && !x.sizes().equals(stage->empty_boundary(data).sizes()))
      throw Error("a boundary tensor of another shape");
    x = stage->forward(i, data, x.defined() ? x.clone() : x);
    if (x.defined()) share.outputs.push_back(x.clone());
  }
  Tensor dy;
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    dy = split_backward ? (*stage)->backward_input(i, dy) : (*stage)->backward(i, dy);
    if (dy.defined()) share.input_gradients.push_back(dy.clone());
  }
  if (!split_backward) return;
  for (auto& stage : stages) stage->backward_weight(i);
}

// The input of the last stage.
Tensor run_to_last(Stages& stages, const data::Microbatch& data) {
  Tensor x;
  for (size_t i = 0; i + 1 < stages.size(); ++i) x = stages[i]->forward_only(data, x);
  return x;
}

void check_forward_only(const Job& job, Stages& stages, const std::vector<data::Microbatch>& batches,
                        Share& share) {
  models::TransformerStage& last = *stages.back();
  for (const data::Microbatch& data : batches) last.forward_only(data, run_to_last(stages, data));
  if (last.take_loss() != share.loss) throw Error("forward alone gives another loss");
  share.logits = last.logits(batches[0], run_to_last(stages, batches[0]), {});
  const Tensor rows = at::tensor({3, 16, 0}, at::kLong);
  const Tensor chosen = last.logits(batches[0], run_to_last(stages, batches[0]), rows);
  if (!(relative_error(chosen, share.logits.index_select(0, rows)) <= tolerance(job.dtype)))
    throw Error("logits of chosen rows are not those rows of all logits");
}

Share run(const Job& job, const std::vector<data::Microbatch>& batches,
          const models::StageParallelism& parallelism) {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  Stages stages = build_stages(job.model, job.split, job.dtype, 7, job.recompute, parallelism);
  Share share;
  for (size_t i = 0; i < batches.size(); ++i)
    run_microbatch(stages, static_cast<int>(i), batches[i], job.split_backward, share);
  share.loss = stages.back()->take_loss();
  check_forward_only(job, stages, batches, share);
  collect(stages, share);
  return share;
}

std::vector<Share> run_ranks(const Job& job, const std::vector<data::Microbatch>& batches, int tp) {
  std::vector<Share> shares(static_cast<size_t>(tp));
  comm::run_thread_ranks(tp, [&](comm::Communicator& group) {
    shares[static_cast<size_t>(group.rank())] =
        run(job, batches, models::make_stage_parallelism({.tp = &group}));
  });
  return shares;
}

// The ranks' rows, concatenated.
Tensor rows_of(const std::vector<Share>& shares, std::vector<Tensor> Share::*what, size_t i) {
  std::vector<Tensor> parts;
  for (const Share& share : shares) parts.push_back((share.*what)[i]);
  return test::cat(parts);
}

Tensor sum_of(const std::vector<Share>& shares, std::map<std::string, Tensor> Share::*what,
              const std::string& name) {
  Tensor sum = (shares[0].*what).at(name).clone();
  for (size_t r = 1; r < shares.size(); ++r) sum.add_((shares[r].*what).at(name));
  return sum;
}

// In float32 the result equals a single rank's up to rounding. In bfloat16 ranks round their parts of a sum,
// and these are larger than the sum: the distance to the float32 result may be twice a single rank's, and by
// chance twice that.
class Near {
 public:
  explicit Near(bool exact) : exact_(exact) {}
  bool operator()(const Tensor& actual, const Tensor& alone, const Tensor& in_float32,
                  CallSite place = CallSite::current()) const {
    if (exact_) return relative_error(actual, alone, place) < gradient_tolerance;
    return relative_error(actual, in_float32, place) < 4 * relative_error(alone, in_float32).value() + 1e-2;
  }

 private:
  bool exact_;
};

void check(const Job& job, int tp) {
  const auto batches = microbatches(job.model);
  const Share alone = run(job, batches, {});
  Job exact = job;
  exact.dtype = at::kFloat;
  const Share in_float32 = job.dtype == at::kFloat ? alone : run(exact, batches, {});
  const Near near(job.dtype == at::kFloat);
  const std::vector<Share> shares = run_ranks(job, batches, tp);
  for (const Share& share : shares) {
    CHECK(share.loss == shares[0].loss);
    CHECK(same_bits(share.logits, shares[0].logits));
  }
  CHECK(relative_error(shares[0].loss, alone.loss) <= (job.dtype == at::kFloat ? 1e-6 : 1e-2));
  CHECK(near(shares[0].logits, alone.logits, in_float32.logits));
  for (size_t i = 0; i < alone.outputs.size(); ++i) {
    CHECK(near(rows_of(shares, &Share::outputs, i), alone.outputs[i], in_float32.outputs[i]));
    CHECK(near(rows_of(shares, &Share::input_gradients, i), alone.input_gradients[i],
               in_float32.input_gradients[i]));
  }
  for (const auto& [name, grad] : alone.grads) {
    INFO(name);
    CHECK(same_bits(sum_of(shares, &Share::masters, name), alone.masters.at(name)));
    CHECK(sum_of(shares, &Share::counted, name).eq(1).all().item<bool>());
    // A softmax ignores what all keys share: the gradient of k's bias is only rounding.
    if (!name.ends_with(".k.bias"))
      CHECK(near(sum_of(shares, &Share::grads, name), grad, in_float32.grads.at(name)));
  }
}

}  // namespace

TEST_CASE("stages of tensor-parallel ranks compute what a rank alone does") {
  at::set_num_threads(1);
  // Key-value heads are divided, or copied to neighbours.
  const auto [tp, kv_heads] = GENERATE(std::pair{2, 4}, std::pair{2, 1}, std::pair{3, 3}, std::pair{3, 1},
                                       std::pair{4, 4}, std::pair{4, 2});
  const auto [arch, tied] = GENERATE(std::pair{"llama", false}, std::pair{"qwen3", true});
  const bool split_backward = GENERATE(false, true);
  INFO(arch << ", " << tp << " ranks, " << kv_heads << " kv heads, I and W " << split_backward);
  check({.model = shared_model(arch, tied, kv_heads),
         .split = split_backward ? std::vector<int64_t>{1, 2, 1} : std::vector<int64_t>{4},
         .split_backward = split_backward},
        tp);
}

TEST_CASE("adapters of tensor-parallel ranks learn what those of a rank alone do") {
  at::set_num_threads(1);
  const auto [tp, kv_heads] = GENERATE(std::pair{2, 4}, std::pair{2, 1}, std::pair{3, 1}, std::pair{4, 2});
  const bool split_backward = GENERATE(false, true);
  INFO(tp << " ranks, " << kv_heads << " kv heads, I and W " << split_backward);
  models::ModelConfig model = shared_model("qwen3", false, kv_heads);
  model.lora = {.rank = 3, .alpha = 5};
  check({.model = model,
         .split = {1, 3},
         .recompute = split_backward ? Recompute::full : Recompute::none,
         .split_backward = split_backward},
        tp);
}

// Experts need the exchange between ranks (test/app/train). olmo2's norms need all heads.
TEST_CASE("stages of a family on tensor-parallel ranks compute what a rank alone does") {
  at::set_num_threads(1);
  const std::string arch = GENERATE(from_range(families));
  const int64_t kv_heads = GENERATE(4, 1);
  models::ModelConfig model = shared_model(arch, kv_heads == 1, kv_heads);
  if (arch == "olmo2" || model.sparse.experts > 0) return;
  INFO(arch << ", " << kv_heads << " kv heads");
  check({.model = model, .split = {2, 2}, .split_backward = kv_heads == 1}, 2);
}

TEST_CASE("tensor parallelism with recomputation, and in bfloat16") {
  at::set_num_threads(1);
  const auto [tp, kv_heads] = GENERATE(std::pair{2, 1}, std::pair{3, 3}, std::pair{4, 2});
  const auto recompute = GENERATE(Recompute::cheap, Recompute::selective, Recompute::full);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  INFO(tp << " ranks");
  check({.model = shared_model("llama", true, kv_heads),
         .split = {2, 2},
         .dtype = dtype,
         .recompute = recompute,
         .split_backward = recompute == Recompute::full},
        tp);
}

TEST_CASE("two runs of tensor-parallel ranks give equal bits, and recomputing changes none") {
  at::set_num_threads(1);
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  Job job{.model = shared_model("qwen3", false, 2), .split = {1, 3}, .dtype = dtype};
  const auto batches = microbatches(job.model);
  const std::vector<Share> first = run_ranks(job, batches, 4);
  const auto check_same = [&](const std::vector<Share>& again) {
    for (size_t r = 0; r < 4; ++r) {
      CHECK(again[r].loss == first[r].loss);
      for (const auto& [name, grad] : first[r].grads) {
        INFO(name);
        CHECK(same_bits(again[r].grads.at(name), grad));
      }
    }
  };
  check_same(run_ranks(job, batches, 4));
  job.split = {2, 1, 1};
  job.split_backward = true;
  check_same(run_ranks(job, batches, 4));
  for (const Recompute recompute : {Recompute::cheap, Recompute::full}) {
    job.recompute = recompute;
    check_same(run_ranks(job, batches, 4));
  }
}

TEST_CASE("fewer tokens than tensor-parallel ranks are refused on every rank") {
  const models::ModelConfig model = shared_model("llama", false, 4);
  CHECK_THROWS_WITH(comm::run_thread_ranks(4,
                                           [&](comm::Communicator& tp) {
                                             const c10::InferenceMode inference;
                                             Stages stages =
                                                 build_stages(model, {4}, at::kFloat, 7, Recompute::none,
                                                              models::make_stage_parallelism({.tp = &tp}));
                                             stages[0]->forward_only(random_documents(model, {3}, 1), {});
                                           }),
                    "stage 0: a list of 3 tokens cannot be shared out to 4 tensor-parallel ranks");
}

TEST_CASE("what a rank holds of a stage and of a microbatch is divided by the tensor-parallel ranks") {
  models::ModelConfig model = shared_model("llama", false, 4);
  model.vocab = 8192;
  model.max_seq = 512;
  model.attention_bias = model.mlp_bias = false;
  const auto recompute = GENERATE(Recompute::none, Recompute::cheap, Recompute::selective, Recompute::full);
  const auto footprint = [&](int tp, bool embedding, bool head) {
    return app::dry_run(
        model, {.first_layer = 0, .end_layer = 4, .embedding = embedding, .head = head},
        {.documents = 2, .length = 512, .bfloat16 = false, .recompute = recompute, .mesh = {.tp = tp}});
  };
  const app::StageFootprint alone = footprint(1, true, true), shared = footprint(4, true, true);
  // All saved activations are sharded. Parameters have more than a quarter only through norms and rounding of
  // buffers.
  CHECK(shared.activation * 4 == alone.activation);
  CHECK(shared.weight_operands * 4 == alone.weight_operands);
  CHECK(static_cast<double>(shared.gradient_bytes) < 0.26 * static_cast<double>(alone.gradient_bytes));
  CHECK(footprint(4, false, false).boundary * 4 == footprint(1, false, false).boundary);
  // A row of the whole vocabulary's logits is 32 KiB, all rows are 32 MiB: chunks of 16 MiB bound both.
  CHECK(shared.passes.forward.workspace < alone.passes.forward.workspace);
}

TEST_CASE("what tensor-parallel ranks send is four exchanges of a layer forward, and six backward") {
  const models::ModelConfig model = shared_model("llama", false, 4);
  const int64_t tokens = 16;
  const auto sent = [](const app::PassFootprint& pass) { return pass.cost.on(kernels::Wire::tp).bytes; };
  const auto footprint = [&](Recompute recompute, int64_t layers) {
    return app::dry_run(model, {.first_layer = 0, .end_layer = static_cast<int>(layers)},
                        {.length = tokens, .recompute = recompute, .mesh = {.tp = 2}});
  };
  // A gather and a scatter each move the other rank's half of [tokens, hidden] in bfloat16.
  const double exchange = static_cast<double>(tokens / 2 * model.hidden * 2);
  const app::StageFootprint none = footprint(Recompute::none, 1);
  CHECK(sent(none.passes.forward) == 4 * exchange);
  CHECK(sent(none.passes.backward) == 6 * exchange);
  CHECK(sent(none.passes.backward_input) == 4 * exchange);
  CHECK(sent(none.passes.backward_weight) == 4 * exchange);
  CHECK(sent(footprint(Recompute::none, 3).passes.forward) == 12 * exchange);
  CHECK(sent(footprint(Recompute::cheap, 1).passes.backward) == 6 * exchange);  // rows of products are kept
  CHECK(sent(footprint(Recompute::selective, 1).passes.backward) == 7 * exchange);
  CHECK(sent(footprint(Recompute::full, 1).passes.backward) == 9 * exchange);
}

TEST_CASE("as many tokens as tensor-parallel ranks are enough") {
  const models::ModelConfig model = shared_model("llama", false, 4);
  CHECK_NOTHROW(comm::run_thread_ranks(4, [&](comm::Communicator& tp) {
    const c10::InferenceMode inference;
    Stages stages =
        build_stages(model, {4}, at::kFloat, 7, Recompute::none, models::make_stage_parallelism({.tp = &tp}));
    stages[0]->forward_only(random_documents(model, {4}, 1), {});
  }));
}
