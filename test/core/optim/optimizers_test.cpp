// Optimizers by name: which one steps a parameter, groups of parameters, the biases that balance experts, and
// the cost of a step.
#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <set>

#include "core/base/error.h"
#include "core/optim/groups.h"
#include "core/optim/muon.h"
#include "core/optim/optimizer.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// One parameter of each role, and two matrices.
void declare_all(nn::ParameterGroup& group) {
  group.add({{.name = "embed.weight", .shape = {9, 6}, .role = nn::Role::embedding}});
  group.add({{.name = "layers.0.attn.q.weight", .shape = {8, 6}},
             {.name = "layers.0.attn.k.weight", .shape = {4, 6}}});
  group.add({{.name = "layers.0.attn.q.bias", .shape = {8}, .role = nn::Role::bias}});
  group.add({{.name = "layers.0.mlp_norm.weight", .shape = {6}, .role = nn::Role::norm}});
  group.add({{.name = "layers.0.mlp.router.weight", .shape = {4, 6}, .role = nn::Role::router}});
  group.add({{.name = "layers.0.mlp.router.bias", .shape = {4}, .role = nn::Role::balance}});
  group.add({{.name = "head.weight", .shape = {9, 6}, .role = nn::Role::head}});
}

std::unique_ptr<nn::ParameterGroup> make_group(at::ScalarType type = at::kFloat) {
  auto group = std::make_unique<nn::ParameterGroup>();
  declare_all(*group);
  group->materialise(at::kCPU, type);
  group->initialise(1);
  for (nn::Slice* p : group->slices()) p->grad.fill_(0.5);
  return group;
}

using Names = std::set<std::string>;

Names names_in(const std::vector<optim::StateTensor>& state, const std::string& file) {
  Names names;
  for (const optim::StateTensor& tensor : state) {
    if (tensor.file == file) names.insert(tensor.slice->spec.name);
  }
  return names;
}

config::OptimizerSection options(const std::string& name, std::vector<config::OptimizerGroup> groups = {}) {
  config::OptimizerSection result{.name = name};
  result.groups = std::move(groups);
  return result;
}

// The decay of a parameter in a step of AdamW at rate 1 with zero gradients.
double decay_of(const nn::ParameterGroup& before, nn::ParameterGroup& after, const std::string& name) {
  auto& start = const_cast<nn::ParameterGroup&>(before);
  const Tensor a = start.find(name)->master, b = after.find(name)->master;
  return 1 - (b / a).mean().item<double>();
}

}  // namespace

TEST_CASE("each optimizer keeps state for what it steps alone", "[optim]") {
  const auto group = make_group();
  const Names matrices = {"layers.0.attn.q.weight", "layers.0.attn.k.weight"};
  Names rest, all;
  for (const nn::Slice* slice : group->slices()) {
    if (slice->spec.role == nn::Role::balance) continue;
    all.insert(slice->spec.name);
    if (!matrices.contains(slice->spec.name)) rest.insert(slice->spec.name);
  }
  const auto state = [&](const std::string& name) {
    return optim::make_optimizer(options(name), group->buffers())->state();
  };
  CHECK(names_in(state("adamw"), "adamw.exp_avg") == all);
  CHECK(names_in(state("adamw"), "adamw.exp_avg_sq") == all);
  CHECK(names_in(state("lion"), "lion.exp_avg") == all);
  CHECK(state("lion").size() == all.size());
  CHECK(names_in(state("muon"), "muon.momentum") == matrices);
  CHECK(names_in(state("muon"), "adamw.exp_avg") == rest);
  CHECK(names_in(state("muon"), "adamw.exp_avg_sq") == rest);
  CHECK_THROWS_WITH(state("sgd"), contains_text("adamw, muon, lion"));
}

TEST_CASE("biases that balance experts move by their rate against the sign of their gradient", "[optim]") {
  const auto group = make_group(at::kBFloat16);
  nn::Slice& bias = *group->find("layers.0.mlp.router.bias");
  bias.grad.copy_(at::tensor({3.0F, -0.25F, 0.0F, 1e-3F}));
  const std::string name = GENERATE("adamw", "lion", "muon");
  const auto optimizer = optim::make_optimizer(options(name, {{.match = "*", .lr_scale = 7}}),
                                               group->buffers(), /*make_exchange=*/{}, /*balance_rate=*/0.25);
  optimizer->keep_previous();
  optimizer->step(1e-2, 0.125);
  CHECK(same_bits(bias.master, at::tensor({-0.25F, 0.25F, 0.0F, -0.25F})));
  optimizer->step(1e-2, 0.125);
  CHECK(same_bits(bias.master, at::tensor({-0.5F, 0.5F, 0.0F, -0.5F})));
  optimizer->undo();
  CHECK(same_bits(bias.master, at::tensor({-0.25F, 0.25F, 0.0F, -0.25F})));
}

TEST_CASE("the first group that matches sets rate and decay", "[optim]") {
  const auto before = make_group(), after = make_group();
  for (nn::Slice* p : after->slices()) p->grad.zero_();
  const auto optimizer =
      optim::make_optimizer(options("adamw", {{.match = "layers.*.q.*", .lr_scale = 0.5},
                                              {.match = "norm", .weight_decay = 0.3},
                                              {.match = "router", .weight_decay = 0},
                                              {.match = "layers.0.*", .weight_decay = 0.7}}),
                            after->buffers());
  optimizer->step(1, 1);
  const auto decay = [&](const char* name) { return decay_of(*before, *after, name); };
  CHECK(decay("embed.weight") == Approx(0.1).epsilon(1e-4));
  CHECK(decay("layers.0.attn.q.weight") == Approx(0.05).epsilon(1e-4));
  CHECK(decay("layers.0.attn.k.weight") == Approx(0.7).epsilon(1e-4));
  CHECK(decay("layers.0.mlp_norm.weight") == Approx(0.3).epsilon(1e-4));
  CHECK(decay("layers.0.mlp.router.weight") == 0);
  CHECK(decay("head.weight") == Approx(0.1).epsilon(1e-4));
}

TEST_CASE("Muon's matrices have a rate and decay of their own, which groups change too", "[optim]") {
  const auto before = make_group(), after = make_group();
  for (nn::Slice* p : after->slices()) p->grad.zero_();
  config::OptimizerSection muon = options("muon", {{.match = "*.k.weight", .lr_scale = 0.5}});
  const auto step = [&](std::optional<double> decay) {
    muon.muon_weight_decay = decay;
    muon.muon_lr_scale = 2;
    for (size_t i = 0; i < after->buffers().size(); ++i)
      after->buffers()[i]->master.copy_(before->buffers()[i]->master);
    optim::make_optimizer(muon, after->buffers())->step(1, 1);
  };
  step(0.2);
  CHECK(decay_of(*before, *after, "layers.0.attn.q.weight") == Approx(0.4).epsilon(1e-4));
  CHECK(decay_of(*before, *after, "layers.0.attn.k.weight") == Approx(0.2).epsilon(1e-4));
  CHECK(decay_of(*before, *after, "embed.weight") == Approx(0.1).epsilon(1e-4));
  step(std::nullopt);
  CHECK(decay_of(*before, *after, "layers.0.attn.q.weight") == Approx(0.2).epsilon(1e-4));
}

TEST_CASE("a tied head is in the group of its embedding", "[optim]") {
  const nn::ParameterSpec head{
      .name = "head.weight", .shape = {9, 6}, .role = nn::Role::head, .init_name = "embed.weight"};
  const auto finds = [&](const char* match) {
    return optim::find_group(std::vector<config::OptimizerGroup>{{.match = match}}, head) != nullptr;
  };
  CHECK(finds("embedding"));
  CHECK(finds("embed*"));
  CHECK_FALSE(finds("head"));
  CHECK_FALSE(finds("head*"));
}

TEST_CASE("groups that nothing is in are named", "[optim]") {
  const auto group = make_group();
  const auto specs = group->specs();
  const auto problems = optim::check_groups(std::vector<config::OptimizerGroup>{{.match = "*norm*"},
                                                                                {.match = "layers.1.*"},
                                                                                {.match = "norm"},
                                                                                {.match = "*router.bias"},
                                                                                {.match = "router"}},
                                            specs);
  REQUIRE(problems.size() == 3);
  CHECK_THAT(problems.at(1), contains_text("\"layers.1.*\" matches no parameter"));
  CHECK_THAT(problems.at(2), contains_text("layers.0.mlp_norm.weight, is in an earlier group"));
  CHECK(problems.contains(3));
}

TEST_CASE("what a rank has of an optimizer", "[optim]") {
  const nn::ParameterSpec q{.name = "q", .shape = {8, 4}, .cut = nn::Cut{.dim = 0, .begin = 0, .size = 4}};
  const nn::ParameterSpec norm{.name = "norm", .shape = {10}, .role = nn::Role::norm};
  const nn::ParameterSpec balance{.name = "b", .shape = {10}, .role = nn::Role::balance};
  const std::vector<const nn::ParameterSpec*> specs = {&q, &norm, &balance};
  config::OptimizerSection job = options("adamw");
  const auto share = [&](int64_t shards, int64_t replicas) {
    return optim::optimizer_share(job, optim::parameter_kinds(specs), at::kBFloat16, shards, replicas);
  };
  CHECK(share(1, 1).held == 8 * 26);
  CHECK(share(2, 1).held == 4 * 26);
  CHECK(share(1, 1).moved == 34 * 26);
  CHECK(share(1, 1).flops == 0);
  CHECK(share(2, 1).workspace == 0);
  job.post_validation = true;
  CHECK(share(1, 1).held == 20 * 26);
  CHECK(share(1, 1).moved == 46 * 26);
  job = options("lion");
  CHECK(share(1, 1).held == 4 * 26);
  job = options("muon");
  CHECK(share(1, 1).held == 4 * 16 + 8 * 10);
  const double flops = 5 * (4 * 4 * 4 * 8 + 2 * 4 * 4 * 4);
  CHECK(optim::orthogonalise_flops(8, 4) == flops);
  CHECK(optim::orthogonalise_flops(4, 8) == flops);
  CHECK(share(1, 1).flops == flops / 2);
  CHECK(share(2, 2).flops == flops / 8);
  CHECK(share(1, 1).sent == 0);
  CHECK(share(1, 1).received == 0);
  CHECK(share(2, 1).sent == 2 * 16 / 2);
  CHECK(share(2, 1).received == 2 * 16 / 2);
  CHECK(share(2, 2).sent == 2 * 16 / 4);
  CHECK(share(2, 2).received == 2 * 16 / 2);
  CHECK(share(1, 1).workspace == 2 * 32 + 2 * (3 * 32 + 2 * 16));
  const std::vector<const nn::ParameterSpec*> twice = {&q, &norm, &q};
  const std::vector<optim::ParameterKind> kinds = optim::parameter_kinds(twice);
  REQUIRE(kinds.size() == 2);
  CHECK(kinds[0] == optim::ParameterKind{.role = nn::Role::matrix, .shape = {8, 4}, .local = 16, .count = 2});
  CHECK(optim::optimizer_share(job, kinds, at::kBFloat16).flops == flops);
}

TEST_CASE("Muon's room for matrices under way, and what is kept to take steps back", "[optim]") {
  const nn::ParameterSpec large{.name = "large", .shape = {8192, 8192}},
      small{.name = "small", .shape = {8, 4}};
  config::OptimizerSection job = options("muon");
  const auto share = [&](const nn::ParameterSpec& spec, size_t count, int64_t shards) {
    const std::vector<const nn::ParameterSpec*> specs(count, &spec);
    return optim::optimizer_share(job, optim::parameter_kinds(specs), at::kBFloat16, shards);
  };
  const double whole = 0x1p26, products = 2 * 5 * whole;
  CHECK(share(large, 8, 1).workspace == 2 * whole + products);
  CHECK(share(large, 8, 2).workspace == 2 * (4 + 3 * 2) * whole + products);     // a round: a matrix a rank
  CHECK(share(large, 8, 16).workspace == 2 * (4 + 3 * 0.5) * whole + products);  // no more than its parts
  CHECK(share(small, 1, 2).workspace == 2 * (4 * 0x1p24 + 3 * 16) + 2 * (3 * 32 + 2 * 16));
  CHECK(share(small, 1, 1).moved == 42 * 32);
  job.post_validation = true;
  CHECK(share(small, 1, 1).held == 12 * 32);
  CHECK(share(small, 1, 1).moved == 58 * 32);
  job.name = "lion";
  CHECK(share(small, 1, 1).held == 12 * 32);
  CHECK(share(small, 1, 1).moved == 34 * 32);
}
