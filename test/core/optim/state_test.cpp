// Moments in bfloat16 over any division of parameters, and the average of weights.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/nn/slice.h"
#include "core/optim/optimizer.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"
#include "test/support/torch_adamw.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

config::OptimizerSection in_bf16(const std::string& name = "adamw") {
  config::OptimizerSection options;
  options.name = name;
  options.state_dtype = config::Dtype::bf16;
  return options;
}

// The parameters as one of `parts` ranks sees them that cut each of them along a dim.
void declare_part(nn::ParameterGroup& group, int part = 0, int parts = 1) {
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, int dim) {
    nn::ParameterSpec spec{.name = name, .shape = std::move(shape)};
    const int64_t size = spec.shape[static_cast<size_t>(dim)] / parts;
    if (parts > 1) spec.cut = nn::Cut{.dim = dim, .begin = part * size, .size = size};
    group.add({spec});
  };
  add("rows.weight", {12, 50}, 0);
  add("columns.weight", {50, 36}, 1);
  add("stack.weight", {3, 24, 7}, 1);
}

using Values = std::map<std::string, Tensor>;  // by file and name, whole and flat

Tensor gradient(const nn::ParameterSpec& spec, int64_t step) {
  return at::sin(at::arange(c10::multiply_integers(spec.shape), at::kFloat) * 0.7 +
                 static_cast<double>(step));
}

// Calls body(place in the slice's tensor, place in the whole one, number) for all that lies in one run.
template <class Body>
void for_runs(const nn::Slice& slice, const Body& body) {
  for (const nn::ElementRun& run : nn::element_runs(slice.shape)) body(run.local, run.global, run.length);
}

// Three steps on one rank's part; what it holds afterwards goes to its place of `all`.
void train(const config::OptimizerSection& options, nn::ParameterGroup& group, Values& all) {
  group.initialise(1);
  const auto optimizer = optim::make_optimizer(options, group.buffers());
  optimizer->start_average();
  for (int64_t step = 0; step < 3; ++step) {
    for (nn::Slice* slice : group.slices()) {
      const Tensor whole = gradient(slice->spec, step), own = slice->grad.view({-1});
      for_runs(*slice, [&](int64_t local, int64_t global, int64_t length) {
        own.narrow(0, local, length).copy_(whole.narrow(0, global, length));
      });
    }
    optimizer->step(1e-2, 0.5);
  }
  const auto keep = [&](const std::string& file, const nn::Slice& slice, const Tensor& values) {
    Tensor& whole = all[file + "/" + slice.spec.name];
    if (!whole.defined()) whole = at::full({c10::multiply_integers(slice.spec.shape)}, -7, values.options());
    for_runs(slice, [&](int64_t local, int64_t global, int64_t length) {
      whole.narrow(0, global, length).copy_(values.reshape({-1}).narrow(0, local, length));
    });
  };
  for (const nn::Slice* slice : group.slices()) keep("model", *slice, slice->master);
  for (const optim::StateTensor& state : optimizer->state()) keep(state.file, *state.slice, state.tensor);
}

Values train_whole(const config::OptimizerSection& options) {
  Values all;
  nn::ParameterGroup group;
  declare_part(group);
  group.materialise(at::kCPU, at::kBFloat16);
  train(options, group, all);
  return all;
}

void check_same(const Values& a, const Values& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, values] : a) {
    INFO(name);
    CHECK(same_bits(values, b.at(name)));
  }
}

}  // namespace

TEST_CASE("moments in bfloat16 have equal bits over cuts and shards", "[optim]") {
  at::set_num_threads(1);
  config::OptimizerSection options = in_bf16(GENERATE("adamw", "lion"));
  options.ema_decay = 0.9;
  const Values whole = train_whole(options);
  REQUIRE(whole.size() == (options.name == "adamw" ? 4 : 3) * 3);
  const std::string file = options.name + ".exp_avg/rows.weight";
  CHECK(whole.at(file).scalar_type() == at::kBFloat16);

  const int cuts = GENERATE(1, 2, 3), shards = GENERATE(1, 2);
  Values parts;
  for (int cut = 0; cut < cuts; ++cut) {
    for (int shard = 0; shard < shards; ++shard) {
      nn::ParameterGroup group;
      declare_part(group, cut, cuts);
      group.materialise(at::kCPU, at::kBFloat16, true, {.index = shard, .count = shards});
      train(options, group, parts);
    }
  }
  check_same(parts, whole);
}

TEST_CASE("moments in bfloat16 draw anew for each parameter and step", "[optim]") {
  at::set_num_threads(1);
  nn::ParameterGroup group;
  for (const char* name : {"a", "b"}) group.add({{.name = name, .shape = {64, 64}}});
  group.add({{.name = "copy", .shape = {64, 64}, .init_name = "a"}});
  group.materialise(at::kCPU, at::kFloat);
  const auto optimizer = optim::make_optimizer(in_bf16(), group.buffers());
  std::vector<Tensor> moments;
  for (int step = 0; step < 2; ++step) {
    for (nn::Slice* slice : group.slices()) {
      slice->master.zero_();
      slice->grad.fill_(1.0 / 3);
    }
    for (const optim::StateTensor& state : optimizer->state()) state.tensor.zero_();
    optimizer->step(0, 1);
    for (const optim::StateTensor& state : optimizer->state()) {
      if (state.file == "adamw.exp_avg") moments.push_back(state.tensor.clone());
    }
  }
  REQUIRE(moments.size() == 6);
  CHECK_FALSE(same_bits(moments[0], moments[1]));
  CHECK(same_bits(moments[0], moments[2]));  // a tied copy steps as the original does
  CHECK_FALSE(same_bits(moments[0], moments[3]));
}

TEST_CASE("AdamW with moments in bfloat16 stays near torch::optim::AdamW, on both sides of it", "[optim]") {
  at::set_num_threads(1);
  at::manual_seed(test::seed(2));
  nn::ParameterGroup group;
  group.add({{.name = "q.weight", .shape = {100, 100}}});
  group.materialise(at::kCPU, at::kFloat);
  group.initialise(1);
  nn::Slice& slice = *group.slices().front();
  config::OptimizerSection options = in_bf16();
  options.betas = {0.9, 0.999};
  const auto optimizer = optim::make_optimizer(options, group.buffers());
  Tensor oracle = slice.master.clone().requires_grad_(true);
  TorchAdamW reference({{.leaf = oracle, .decay = 0.1}}, {0.9, 0.999});
  // Second moments change by a thousandth a step, which rounding to nearest would lose.
  for (int step = 0; step < 300; ++step) {
    const double scale = step < 100 ? 1 : 4;
    const Tensor gradient = at::randn({100, 100}) * scale + 0.1;
    slice.grad.copy_(gradient);
    oracle.mutable_grad() = gradient;
    reference.step(1e-3);
    optimizer->step(1e-3, 1);
  }
  const auto [exp_avg, exp_avg_sq] = reference.moments(0);
  const auto relative_bias = [](const Tensor& actual, const Tensor& expected) {
    return ((actual.to(at::kDouble) - expected).sum() / expected.to(at::kDouble).abs().sum()).item<double>();
  };
  for (const optim::StateTensor& own : optimizer->state()) {
    const Tensor& expected = own.file == "adamw.exp_avg" ? exp_avg : exp_avg_sq;
    INFO(own.file);
    CHECK(relative_error(own.tensor, expected) < 0.03);
    CHECK(std::abs(relative_bias(own.tensor, expected)) < 1e-3);
  }
  CHECK(relative_error(slice.master, oracle.detach()) < 0.01);
}

TEST_CASE("the average of weights is torch's lerp of them, with a decay that grows", "[optim]") {
  at::set_num_threads(1);
  nn::ParameterGroup group;
  declare_part(group);
  group.materialise(at::kCPU, at::kBFloat16);
  group.initialise(1);
  config::OptimizerSection options;
  options.name = GENERATE("adamw", "lion", "muon");
  options.ema_decay = 0.4;
  const auto optimizer = optim::make_optimizer(options, group.buffers());
  const auto averages = [&] {
    std::vector<Tensor> result;
    for (const optim::StateTensor& state : optimizer->state()) {
      if (state.file == optim::average_file) result.push_back(state.tensor);
    }
    return result;
  };
  optimizer->start_average();
  if (GENERATE(false, true)) optimizer->keep_previous();
  std::vector<Tensor> oracle;
  for (const nn::Slice* slice : group.slices()) oracle.push_back(slice->master.to(at::kDouble));
  for (int64_t step = 1; step <= 8; ++step) {
    for (nn::Slice* slice : group.slices())
      slice->grad.copy_(gradient(slice->spec, step).view(slice->grad.sizes()));
    optimizer->step(1e-2, 1);
    const double decay = std::min(0.4, static_cast<double>(1 + step) / static_cast<double>(10 + step));
    const std::vector<Tensor> own = averages();
    REQUIRE(own.size() == oracle.size());
    for (size_t i = 0; i < own.size(); ++i) {
      oracle[i] = at::lerp(oracle[i], group.slices()[i]->master.to(at::kDouble), 1 - decay);
      CHECK(relative_error(own[i], oracle[i]) < 1e-6);
    }
  }
}

TEST_CASE("what bf16 moments and an average of weights hold and move", "[optim]") {
  const nn::ParameterSpec q{.name = "q", .shape = {8, 4}};
  const std::vector<const nn::ParameterSpec*> specs = {&q};
  const auto share = [&](const config::OptimizerSection& job) {
    return optim::optimizer_share(job, optim::parameter_kinds(specs), at::kBFloat16);
  };
  config::OptimizerSection job = in_bf16();
  CHECK(share(job).held == 4 * 32);
  CHECK(share(job).moved == 26 * 32);
  job.post_validation = true;
  CHECK(share(job).held == 12 * 32);
  CHECK(share(job).moved == 34 * 32);
  job.ema_decay = 0.99;
  CHECK(share(job).held == 20 * 32);
  CHECK(share(job).moved == (34 + 12 + 8) * 32);
}
