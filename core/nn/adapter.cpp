#include "core/nn/adapter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <string>
#include <utility>

#include "core/kernels/dry_run.h"
#include "core/kernels/kernels.h"
#include "core/nn/weight_grad_queue.h"

namespace pptrain::nn {
namespace {

bool is_cut_by_inputs(const ParameterSpec& weight) {
  return weight.cut && weight.cut->dim == 1;
}

// If ranks hold copies of an adapter weight whose base weight is sharded, the first rank counts it.
void copy_beside(const ParameterSpec& weight, ParameterSpec& spec) {
  if (!weight.cut && weight.copies == Copies::one) return;
  spec.copies = Copies::tp;
  spec.counted = weight.counted && (!weight.cut || weight.cut->begin == 0);
}

ParameterSpec down_spec(const ParameterSpec& weight, int64_t rank) {
  const int64_t in = weight.shape.at(1);
  ParameterSpec spec{.name = adapter_weight(weight.name, 'a'),
                     .shape = {rank, in},
                     .init_std = 1 / std::sqrt(3 * static_cast<double>(in))};
  if (is_cut_by_inputs(weight)) {
    spec.cut = weight.cut;
  } else {
    copy_beside(weight, spec);
  }
  return spec;
}

ParameterSpec up_spec(const ParameterSpec& weight, int64_t rank) {
  ParameterSpec spec{
      .name = adapter_weight(weight.name, 'b'), .shape = {weight.shape.at(0), rank}, .init_std = 0};
  if (is_cut_by_inputs(weight)) {
    copy_beside(weight, spec);
  } else {
    spec.cut = weight.cut;
    spec.copies = weight.copies;
    spec.counted = weight.counted;
  }
  return spec;
}

void scale_in_place(at::Tensor& x, double scale) {
  kernels::record(kernels::moving(x, x));
  x.mul_(scale);
}

}  // namespace

std::string adapter_weight(const std::string& weight, char factor) {
  return weight.substr(0, weight.rfind('.')) + ".lora_" + factor + ".weight";
}

std::optional<std::string> adapted_weight(std::string_view parameter) {
  for (const std::string_view end : {".lora_a.weight", ".lora_b.weight"}) {
    if (parameter.ends_with(end))
      return std::string(parameter.substr(0, parameter.size() - end.size())) + ".weight";
  }
  return std::nullopt;
}

std::optional<Adapter> Adapter::declare(const ParameterGroup& group, std::span<const ParameterSpec> weights) {
  const Learning& learning = group.learning();
  if (!learning.adapts || group.adapters() == nullptr) return std::nullopt;
  Adapter adapter;
  adapter.rank_ = learning.rank;
  adapter.scale_ = learning.scale;
  std::vector<ParameterSpec> downs;
  for (const ParameterSpec& weight : weights) {
    if (learning.adapts(weight)) {
      downs.push_back(down_spec(weight, learning.rank));
      Weight& up = group.adapters()->add({up_spec(weight, learning.rank)});
      adapter.parts_.push_back({.up = &up, .first = adapter.out_});
    }
    adapter.out_ += weight.local_shape()[0];
  }
  if (downs.empty()) return std::nullopt;
  adapter.down_ = &group.adapters()->add(std::move(downs));
  adapter.down_->grad_by_products = true;
  return adapter;
}

at::Tensor Adapter::block(const at::Tensor& all, size_t part) const {
  const Part& p = parts_[part];
  return all.narrow(0, p.first, p.up->compute.size(0)).narrow(1, static_cast<int64_t>(part) * rank_, rank_);
}

at::Tensor Adapter::up() const {
  const at::Tensor& first = parts_.front().up->compute;
  if (parts_.size() == 1 && first.size(0) == out_) return first;
  const at::Tensor all = at::zeros({out_, static_cast<int64_t>(parts_.size()) * rank_}, first.options());
  kernels::record(kernels::moving(all));
  for (size_t part = 0; part < parts_.size(); ++part) {
    kernels::record(kernels::moving(parts_[part].up->compute, parts_[part].up->compute));
    block(all, part).copy_(parts_[part].up->compute);
  }
  return all;
}

at::Tensor Adapter::down(const at::Tensor& x) const {
  at::Tensor result = at::empty({x.size(0), down_->compute.size(0)}, x.options());
  kernels::linear(x, down_->compute, std::nullopt, result);
  scale_in_place(result, scale_);
  return result;
}

at::Tensor Adapter::down_gradient(const at::Tensor& dy) const {
  at::Tensor result = at::empty({dy.size(0), down_->compute.size(0)}, dy.options());
  kernels::matmul(dy, up(), result);
  scale_in_place(result, scale_);
  return result;
}

void Adapter::forward(const at::Tensor& x, at::Tensor& y) const {
  at::Tensor added = at::empty(y.sizes(), y.options());
  kernels::linear(down(x), up(), std::nullopt, added);
  kernels::add(y, added);
}

void Adapter::backward_input(const at::Tensor& dy, at::Tensor& dx) const {
  at::Tensor added = at::empty(dx.sizes(), dx.options());
  kernels::matmul(down_gradient(dy), down_->compute, added);
  kernels::add(dx, added);
}

void Adapter::backward_weight(const at::Tensor& x, const at::Tensor& dy) {
  add_weight_gradient(*down_, down_gradient(dy), x);
  const at::Tensor inner = down(x);
  at::Tensor up_gradient = at::empty({out_, inner.size(1)}, dy.options().dtype(at::kFloat));
  kernels::weight_gradient(dy, inner, up_gradient);
  for (size_t part = 0; part < parts_.size(); ++part) {
    at::Tensor grad = parts_[part].up->grad;
    kernels::add(grad, block(up_gradient, part));
  }
}

}  // namespace pptrain::nn
