#include "core/nn/parameter.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <map>
#include <string>

#include "core/base/error.h"
#include "core/nn/weight_grad_queue.h"
#include "test/core/kernels/compare.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

nn::ParameterSpec matrix(const std::string& name, int64_t rows, int64_t cols) {
  return {.name = name, .shape = {rows, cols}};
}

}  // namespace

TEST_CASE("a group lays weights out at multiples of 64 elements, parts stacked without gaps", "[nn]") {
  nn::ParameterGroup group("layers.0");
  nn::Weight& first = group.add({matrix("q", 3, 5), matrix("k", 2, 5)});
  nn::Weight& norm = group.add({{.name = "norm", .shape = {7}, .role = nn::Role::norm}});
  nn::Weight& last = group.add({matrix("o", 5, 3)});
  CHECK(first.compute.is_meta());
  CHECK(group.parameter_count() == 47);
  group.materialise(at::kCPU, at::kBFloat16);
  group.initialise(1);

  // Matrices in one buffer; norms, which compute in float32, in another.
  REQUIRE(group.buffers().size() == 2);
  const nn::Buffer& matrices = *group.buffers()[0];
  const nn::Buffer& norms = *group.buffers()[1];
  CHECK(matrices.master.numel() == 128);
  CHECK(norms.master.numel() == 64);
  CHECK_FALSE(norms.compute.defined());
  CHECK(first.compute.sizes() == at::IntArrayRef({5, 5}));
  CHECK(first.compute.scalar_type() == at::kBFloat16);
  CHECK(same_bits(first.compute,
                  test::cat({group.find("q")->master, group.find("k")->master}).to(at::kBFloat16)));
  CHECK(norm.compute.const_data_ptr() == group.find("norm")->master.const_data_ptr());
  CHECK(norm.compute.eq(1).all().item<bool>());
  CHECK(reinterpret_cast<uintptr_t>(last.compute.const_data_ptr()) % 64 == 0);
  CHECK(group.find("o")->offset == 64);
  CHECK(matrices.master.narrow(0, 25, 39).eq(0).all().item<bool>());

  std::vector<std::string> names;
  for (const nn::Slice* slice : group.slices()) {
    names.push_back(slice->spec.name);
    CHECK(slice->shape.is_whole());
    CHECK(slice->master.sizes() == at::IntArrayRef(slice->spec.shape));
  }
  CHECK(names == std::vector<std::string>{"q", "k", "norm", "o"});

  group.find("k")->grad.fill_(2);
  CHECK(first.grad.sum().item<float>() == 20);
  group.zero_grad();
  CHECK(first.grad.abs().sum().item<float>() == 0);

  group.find("q")->master.fill_(3);
  group.refresh_compute();
  CHECK(group.find("q")->compute.eq(3).all().item<bool>());
  CHECK(group.find("nobody") == nullptr);
}

TEST_CASE("float32 compute shares the masters' memory, and gradients are optional", "[nn]") {
  nn::ParameterGroup group;
  nn::Weight& weight = group.add({matrix("w", 2, 2)});
  group.materialise(at::kCPU, at::kFloat, /*with_gradients=*/false);
  CHECK(weight.compute.const_data_ptr() == group.find("w")->master.const_data_ptr());
  CHECK_FALSE(weight.grad.defined());
  group.zero_grad();
}

TEST_CASE("the parts of a divided group together are the whole group", "[nn]") {
  const auto type = GENERATE(at::kFloat, at::kBFloat16);
  const int parts = GENERATE(1, 2, 3, 5);
  const auto declare = [](nn::ParameterGroup& group) {
    group.add({matrix("q", 61, 53), matrix("k", 37, 53)});
    group.add({{.name = "norm", .shape = {1500}, .role = nn::Role::norm}});
    group.add({{.name = "cut", .shape = {90, 20}, .cut = nn::Cut{.dim = 1, .begin = 5, .size = 8}}});
  };
  nn::ParameterGroup whole;
  declare(whole);
  whole.materialise(at::kCPU, type);
  whole.initialise(4);
  std::map<std::string, int64_t> seen;  // elements
  for (int part = 0; part < parts; ++part) {
    nn::ParameterGroup group;
    declare(group);
    group.materialise(at::kCPU, type, true, {.index = part, .count = parts});
    group.initialise(4);
    int64_t held = 0;
    for (const nn::Buffer* shard : group.buffers()) held += shard->master.numel();
    // Two buffers; each shard is a number of whole blocks.
    const int64_t unit = parts > 1 ? 1024 * parts : 64;
    CHECK(held * parts < (61 * 53 + 37 * 53 + 1500 + 720) + 64 * 3 + 2 * unit);
    CHECK((parts == 1 || group.buffers()[0]->master.numel() % 1024 == 0));
    CHECK(whole_bytes(group) == 0);  // nothing is gathered yet
    for (const nn::Slice* slice : group.slices()) {
      const nn::Slice& all = *whole.find(slice->spec.name);
      CHECK(slice->shape.begin == seen[slice->spec.name]);
      seen[slice->spec.name] += slice->shape.numel();
      const auto range = [&](const Tensor& t) {
        return t.reshape({-1}).narrow(0, slice->shape.begin, slice->shape.numel());
      };
      CHECK(same_bits(slice->master.reshape({-1}), range(all.master)));
      CHECK(same_bits(slice->compute.reshape({-1}), range(all.compute)));
      CHECK(slice->grad.numel() == slice->shape.numel());
      CHECK(slice->place == all.place + slice->shape.begin);
    }
  }
  CHECK(seen == std::map<std::string, int64_t>{{"q", 3233}, {"k", 1961}, {"norm", 1500}, {"cut", 720}});
  // A slice of a parameter has the values of the whole.
  nn::ParameterGroup uncut;
  uncut.add({matrix("cut", 90, 20)});
  uncut.materialise(at::kCPU, type);
  uncut.initialise(4);
  CHECK(whole.find("cut")->master.sizes() == at::IntArrayRef({90, 8}));
  CHECK(same_bits(whole.find("cut")->master, uncut.find("cut")->master.narrow(1, 5, 8).contiguous()));
}

TEST_CASE("whole gradients beside own ones come as zeros and go", "[nn]") {
  const int parts = GENERATE(1, 2);
  nn::ParameterGroup group;
  nn::Weight& matrices = group.add({matrix("w", 60, 50)});
  nn::Weight& norm = group.add({{.name = "norm", .shape = {1500}, .role = nn::Role::norm}});
  group.materialise(at::kCPU, at::kFloat, true, {.index = 0, .count = parts, .own_gradient = true});
  // Norms lie apart in float32 too: their gradients are taken at another time.
  REQUIRE(group.buffers().size() == 2);
  CHECK_FALSE(group.buffers()[0]->with_input);
  CHECK(group.buffers()[1]->with_input);
  CHECK(whole_bytes(group) == 0);
  for (int turn = 0; turn < 2; ++turn) {
    group.restore_whole_grad(0);
    CHECK(whole_bytes(group) == group.buffers()[0]->whole_grad.numel() * 4);
    CHECK(matrices.grad.eq(0).all().item<bool>());
    matrices.grad.fill_(3);
    group.restore_whole_grad(0);  // it is there already
    CHECK(matrices.grad.eq(3).all().item<bool>());
    CHECK(group.buffers()[0]->whole_grad.sum().item<float>() == 9000);
    group.release_whole_grad(0);
    CHECK(whole_bytes(group) == 0);
  }
  group.restore_whole_grad(1);
  norm.grad.fill_(1);
  group.release_whole_grad(1);
  for (nn::Buffer* shard : group.buffers()) {
    CHECK(shard->grad.eq(0).all().item<bool>());
    shard->grad.fill_(2);
  }
  group.zero_grad();
  for (const nn::Slice* slice : group.slices()) CHECK(slice->grad.eq(0).all().item<bool>());
}

TEST_CASE("gradients that products write are not filled with zeros first, all others are", "[nn]") {
  const bool own = GENERATE(false, true);
  nn::ParameterGroup group;
  nn::Weight& table = group.add({matrix("table", 3, 5)});  // 15 elements, then a gap
  nn::Weight& first = group.add({matrix("a", 3, 5), matrix("b", 2, 5)});
  nn::Weight& second = group.add({matrix("c", 5, 3)});
  nn::Weight& last = group.add({matrix("d", 2, 2)});
  first.grad_by_products = second.grad_by_products = true;
  group.materialise(at::kCPU, at::kFloat, true, {.index = 0, .count = 1, .own_gradient = own});
  CHECK_FALSE(first.grad_is_unset);  // zeros since they were made
  if (own) {
    group.restore_whole_grad(0);
  } else {
    group.buffers()[0]->whole_grad.fill_(7);
    group.start_grad();
  }
  const Tensor all = group.buffers()[0]->whole_grad;
  if (own) first.grad.fill_(7), second.grad.fill_(7);
  CHECK((first.grad_is_unset && second.grad_is_unset && !table.grad_is_unset && !last.grad_is_unset));
  CHECK(all.sum().item<float>() == 7 * (25 + 15));  // only these two keep values

  const Tensor dy = at::ones({4, 5}), x = at::ones({4, 5});
  nn::add_weight_gradient(first, dy, x);
  CHECK_FALSE(first.grad_is_unset);
  CHECK(first.grad.eq(4).all().item<bool>());
  nn::add_weight_gradient(first, dy, x);
  CHECK(first.grad.eq(8).all().item<bool>());
  group.complete_grad(0);
  CHECK_FALSE(second.grad_is_unset);
  CHECK(all.sum().item<float>() == 8 * 25);
  group.complete_grad();
  CHECK(all.sum().item<float>() == 8 * 25);
  if (own) return;
  group.start_grad();
  group.zero_grad();
  CHECK_FALSE(first.grad_is_unset);
  CHECK(all.sum().item<float>() == 0);
}

TEST_CASE("experts without rows have zeros, whatever was there", "[nn]") {
  nn::ParameterGroup group;
  nn::Weight& weight = group.add({matrix("0", 4, 3), matrix("1", 4, 3), matrix("2", 4, 3)});
  weight.grad_by_products = true;
  group.materialise(at::kCPU, at::kFloat);
  weight.grad.fill_(std::nan(""));
  group.start_grad();
  const Tensor ends = at::tensor({0, 2, 2}, at::kInt), dy = at::ones({2, 4}), x = at::ones({2, 3});
  for (int turn = 1; turn <= 2; ++turn) {
    nn::add_grouped_weight_gradient(weight, {.x = dy, .order = {}}, {.x = x, .order = {}}, ends);
    CHECK(group.find("0")->grad.eq(0).all().item<bool>());
    CHECK(group.find("1")->grad.eq(2 * turn).all().item<bool>());
    CHECK(group.find("2")->grad.eq(0).all().item<bool>());
  }
}

TEST_CASE("a group refuses declarations that cannot be right", "[nn]") {
  nn::ParameterGroup group;
  group.add({matrix("w", 2, 2)});
  CHECK_THROWS_WITH(group.add({matrix("w", 3, 2)}), contains_text("'w'"));
  CHECK_THROWS_WITH(group.add({matrix("a", 3, 2), matrix("a", 3, 2)}), contains_text("'a'"));
  CHECK_THROWS_WITH(group.add({matrix("a", 3, 2), matrix("b", 3, 4)}), contains_text("[3, 4]"));
  CHECK_THROWS_AS(group.add({matrix("c", 0, 2)}), Error);
  CHECK_THROWS_AS(
      group.add({{.name = "d", .shape = {4, 2}, .cut = nn::Cut{.dim = 0, .begin = 3, .size = 2}}}), Error);
  CHECK(group.find("a") == nullptr);
  CHECK_THROWS_AS(group.materialise(at::kCPU, at::kHalf), Error);
  CHECK_THROWS_AS(group.materialise(at::kCPU, at::kFloat, true, {.index = 2, .count = 2}), Error);
  group.materialise(at::kCPU, at::kFloat);
  CHECK_THROWS_AS(group.add({matrix("d", 3, 2)}), Error);
  CHECK_THROWS_AS(group.materialise(at::kCPU, at::kFloat), Error);
}

TEST_CASE("a name belongs to one group of a store", "[nn]") {
  nn::ParameterStore store;
  store.add_group("one").add({matrix("w", 2, 2)});
  store.add_group("other").add({matrix("v", 2, 2), matrix("w", 2, 2)});
  CHECK_THROWS_WITH(store.materialise(at::kCPU, at::kFloat), contains_text("'w' is declared twice"));
}

TEST_CASE("initial values depend on name and seed alone", "[nn]") {
  const nn::ParameterSpec spec{.name = "layers.3.attn.q.weight", .shape = {64, 48}, .init_std = 0.02};
  const auto values = [](nn::ParameterSpec s, uint64_t seed) {
    Tensor out = at::empty(s.shape);
    nn::fill_initial_values(s, nn::whole_slice(s.shape), seed, out);
    return out;
  };
  const Tensor reference = values(spec, 7);
  at::manual_seed(test::seed(1));
  at::randn({10});
  at::set_num_threads(2);
  CHECK(same_bits(values(spec, 7), reference));
  at::set_num_threads(1);

  nn::ParameterSpec other = spec;
  other.name = "layers.4.attn.q.weight";
  CHECK_FALSE(same_bits(values(other, 7), reference));
  CHECK_FALSE(same_bits(values(spec, 8), reference));
  CHECK_FALSE(same_bits(values(spec, 7 + (uint64_t{1} << 40)), reference));

  CHECK(std::abs(reference.std().item<double>() / 0.02 - 1) < 0.05);
  CHECK(std::abs(reference.mean().item<double>()) < 0.002);

  nn::ParameterGroup alone, together;
  alone.add({spec});
  together.add({matrix("before", 5, 48)});
  together.add({other, spec});
  alone.materialise(at::kCPU, at::kFloat);
  together.materialise(at::kCPU, at::kBFloat16);
  alone.initialise(7);
  together.initialise(7);
  CHECK(same_bits(alone.find(spec.name)->master, reference));
  CHECK(same_bits(together.find(spec.name)->master, reference));
}
