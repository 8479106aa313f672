#include "core/nn/parameter.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "core/base/error.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

nn::ParameterSpec matrix(const std::string& name, int64_t rows, int64_t cols) {
  return {.name = name, .shape = {rows, cols}};
}

}  // namespace

TEST_CASE("a store lays weights out at multiples of 64 elements, parts stacked without gaps", "[nn]") {
  nn::ParameterStore store;
  nn::Weight& first = store.add({matrix("q", 3, 5), matrix("k", 2, 5)});
  nn::Weight& second =
      store.add({{.name = "norm", .shape = {7}, .init = nn::Init::ones, .weight_decay = false}});
  CHECK(first.master.is_meta());
  CHECK(store.parameter_count() == 32);
  store.materialise(at::kCPU, at::kBFloat16);
  CHECK(first.offset == 0);
  CHECK(second.offset == 64);
  CHECK(store.padded_size() == 128);
  store.initialise(1);

  CHECK(first.master.sizes() == at::IntArrayRef({5, 5}));
  CHECK(same_bits(first.master, at::cat({store.find("q")->master, store.find("k")->master})));
  CHECK(first.master.const_data_ptr() == store.flat_master().const_data_ptr());
  CHECK(same_bits(first.compute, first.master.to(at::kBFloat16)));
  CHECK(second.master.eq(1).all().item<bool>());
  CHECK(store.flat_master().narrow(0, 25, 39).eq(0).all().item<bool>());
  CHECK(store.flat_master().narrow(0, 71, 57).eq(0).all().item<bool>());
  CHECK(reinterpret_cast<uintptr_t>(second.compute.const_data_ptr()) % 64 == 0);

  store.find("k")->grad.fill_(2);
  CHECK(first.grad.sum().item<float>() == 20);
  store.zero_grad();
  CHECK(store.flat_grad().abs().sum().item<float>() == 0);

  store.find("q")->master.fill_(3);
  store.refresh_compute();
  CHECK(store.find("q")->compute.eq(3).all().item<bool>());
  CHECK(store.find("nobody") == nullptr);
}

TEST_CASE("float32 compute shares the masters' memory, and gradients are optional", "[nn]") {
  nn::ParameterStore store;
  nn::Weight& weight = store.add({matrix("w", 2, 2)});
  store.materialise(at::kCPU, at::kFloat, /*with_gradients=*/false);
  CHECK(weight.compute.const_data_ptr() == weight.master.const_data_ptr());
  CHECK_FALSE(weight.grad.defined());
  store.zero_grad();
}

TEST_CASE("a store refuses declarations that cannot be right", "[nn]") {
  nn::ParameterStore store;
  store.add({matrix("w", 2, 2)});
  CHECK_THROWS_WITH(store.add({matrix("w", 3, 2)}), contains_text("'w'"));
  CHECK_THROWS_WITH(store.add({matrix("a", 3, 2), matrix("a", 3, 2)}), contains_text("'a'"));
  CHECK_THROWS_WITH(store.add({matrix("a", 3, 2), matrix("b", 3, 4)}), contains_text("[3, 4]"));
  CHECK_THROWS_AS(store.add({matrix("c", 0, 2)}), Error);
  CHECK(store.find("a") == nullptr);
  CHECK_THROWS_AS(store.materialise(at::kCPU, at::kHalf), Error);
  store.materialise(at::kCPU, at::kFloat);
  CHECK_THROWS_AS(store.add({matrix("d", 3, 2)}), Error);
  CHECK_THROWS_AS(store.materialise(at::kCPU, at::kFloat), Error);
}

TEST_CASE("initial values depend on name and seed alone", "[nn]") {
  const nn::ParameterSpec spec{.name = "layers.3.attn.q.weight", .shape = {64, 48}, .init_std = 0.02};
  const auto values = [](nn::ParameterSpec s, uint64_t seed) {
    Tensor out = at::empty(s.shape);
    nn::fill_initial_values(s, seed, out);
    return out;
  };
  const Tensor reference = values(spec, 7);
  at::manual_seed(1);
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

  nn::ParameterStore alone, together;
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
