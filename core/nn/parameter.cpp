#include "core/nn/parameter.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "core/base/error.h"

namespace pptrain::nn {
namespace {

constexpr int64_t kAlignment = 64;  // elements

int64_t round_up(int64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t element_count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// FNV-1a (Fowler, Noll, Vo) over the bytes of the name.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// Finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): every input bit reaches every output bit, so
// that the low half alone, which is what seeds ATen's Mersenne twister, still depends on the whole name and
// seed.
uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

std::vector<int64_t> stacked_shape(std::span<const ParameterSpec> parts) {
  std::vector<int64_t> shape = parts.front().shape;
  for (const ParameterSpec& part : parts.subspan(1)) {
    if (part.shape.size() != shape.size() ||
        !std::equal(shape.begin() + 1, shape.end(), part.shape.begin() + 1)) {
      throw Error(fmt::format(
          "parameter '{}' of shape [{}] cannot be stacked under '{}' of shape [{}]: all dims but the first "
          "must agree",
          part.name, fmt::join(part.shape, ", "), parts.front().name, fmt::join(parts.front().shape, ", ")));
    }
    shape[0] += part.shape[0];
  }
  return shape;
}

at::Tensor view_of(const at::Tensor& flat, int64_t offset, at::IntArrayRef shape) {
  return flat.narrow(0, offset, c10::multiply_integers(shape)).view(shape);
}

}  // namespace

Weight& ParameterStore::add(std::vector<ParameterSpec> parts) {
  if (materialised_) {
    throw Error("a parameter was declared after its store was materialised");
  }
  if (parts.empty()) {
    throw Error("a weight needs at least one parameter");
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const ParameterSpec& part = parts[i];
    if (part.shape.empty() ||
        std::any_of(part.shape.begin(), part.shape.end(), [](int64_t n) { return n <= 0; })) {
      throw Error(fmt::format("parameter '{}' has the shape [{}]: every dim must be positive", part.name,
                              fmt::join(part.shape, ", ")));
    }
    const bool repeated = std::any_of(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(i),
                                      [&](const ParameterSpec& p) { return p.name == part.name; });
    if (repeated || find(part.name) != nullptr) {
      throw Error(fmt::format("parameter '{}' is declared twice", part.name));
    }
  }
  const std::vector<int64_t> shape = stacked_shape(parts);
  const auto meta = at::TensorOptions().device(at::kMeta).dtype(at::kFloat);
  Weight& weight = weights_.emplace_back();
  weight.master = weight.compute = weight.grad = at::empty(shape, meta);
  weight.first_parameter = parameters_.size();
  weight.parts = parts.size();
  weight.offset = padded_size_;
  padded_size_ += round_up(element_count(shape));
  for (ParameterSpec& part : parts) {
    const at::Tensor tensor = at::empty(part.shape, meta);
    parameters_.push_back({.spec = std::move(part), .master = tensor, .compute = tensor, .grad = tensor});
  }
  return weight;
}

void ParameterStore::materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients) {
  if (materialised_) {
    throw Error("a parameter store was materialised twice");
  }
  if (compute_dtype != at::kFloat && compute_dtype != at::kBFloat16) {
    throw Error(
        fmt::format("parameters compute in float32 or bfloat16, not {}", c10::toString(compute_dtype)));
  }
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  flat_master_ = at::zeros({padded_size_}, options);
  flat_compute_ =
      compute_dtype == at::kFloat ? flat_master_ : at::zeros({padded_size_}, options.dtype(compute_dtype));
  flat_grad_ = with_gradients ? at::zeros({padded_size_}, options) : at::Tensor();
  compute_dtype_ = compute_dtype;
  materialised_ = true;
  for (Weight& weight : weights_) {
    int64_t offset = weight.offset;
    const std::vector<int64_t> shape = weight.master.sizes().vec();
    weight.master = view_of(flat_master_, offset, shape);
    weight.compute = view_of(flat_compute_, offset, shape);
    weight.grad = with_gradients ? view_of(flat_grad_, offset, shape) : at::Tensor();
    for (size_t i = weight.first_parameter; i < weight.first_parameter + weight.parts; ++i) {
      Parameter& parameter = parameters_[i];
      parameter.master = view_of(flat_master_, offset, parameter.spec.shape);
      parameter.compute = view_of(flat_compute_, offset, parameter.spec.shape);
      parameter.grad = with_gradients ? view_of(flat_grad_, offset, parameter.spec.shape) : at::Tensor();
      offset += parameter.master.numel();
    }
  }
}

void ParameterStore::initialise(uint64_t seed) {
  for (Parameter& parameter : parameters_) {
    if (parameter.master.device().is_cpu()) {
      fill_initial_values(parameter.spec, seed, parameter.master);
    } else {
      at::Tensor values = at::empty(parameter.spec.shape, at::TensorOptions().dtype(at::kFloat));
      fill_initial_values(parameter.spec, seed, values);
      parameter.master.copy_(values);
    }
  }
  refresh_compute();
}

void ParameterStore::refresh_compute() {
  if (compute_dtype_ != at::kFloat) {
    flat_compute_.copy_(flat_master_);
  }
}

void ParameterStore::zero_grad() {
  if (flat_grad_.defined()) {
    flat_grad_.zero_();
  }
}

Parameter* ParameterStore::find(std::string_view name) {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(),
                                  [&](const Parameter& parameter) { return parameter.spec.name == name; });
  return found == parameters_.end() ? nullptr : &*found;
}

int64_t ParameterStore::parameter_count() const {
  return std::accumulate(parameters_.begin(), parameters_.end(), int64_t{0},
                         [](int64_t sum, const Parameter& p) { return sum + p.master.numel(); });
}

void fill_initial_values(const ParameterSpec& spec, uint64_t seed, at::Tensor& out) {
  switch (spec.init) {
    case Init::ones:
      out.fill_(1);
      return;
    case Init::zeros:
      out.zero_();
      return;
    case Init::normal: {
      const std::string& name = spec.init_name.empty() ? spec.name : spec.init_name;
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(mix(hash_name(name) ^ mix(seed)));
      out.normal_(0, spec.init_std, generator);
      return;
    }
  }
}

}  // namespace pptrain::nn
