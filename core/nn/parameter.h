// Parameters of one stage: where the master weights, compute weights and main gradients live.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

namespace pptrain::nn {

enum class Init { normal, ones, zeros };

// What a parameter is, before it has any memory. `name` is global ("layers.17.attn.q.weight"): it, with the
// seed, alone decides the initial values, whichever rank builds it.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  Init init = Init::normal;
  double init_std = 0.02;
  bool weight_decay = true;
  // Initial values are those of this name instead, so that a copy (a tied head) starts equal. Empty: `name`.
  std::string init_name = {};
};

// One named parameter: views into its store's flat buffers.
struct Parameter {
  ParameterSpec spec;
  at::Tensor master;   // float32
  at::Tensor compute;  // compute type; the same memory as master when that is float32
  at::Tensor grad;     // float32 main gradient
};

// What a layer computes with: one or several parameters stacked along dim 0 (q, k, v; gate, up), so that one
// matrix product serves them all. Tensors are meta tensors until the store is materialised.
struct Weight {
  at::Tensor master;           // float32 [rows of all parts, ...]
  at::Tensor compute;          // compute type
  at::Tensor grad;             // float32
  size_t first_parameter = 0;  // index in ParameterStore::parameters()
  size_t parts = 0;
  int64_t offset = 0;  // in elements, into the flat buffers; a multiple of 64
};

// Owns the flat buffers of one stage. Weights are laid out in the order of `add`, each at a multiple of 64
// elements, so that matrix products see the same alignment (and give the same bits) on every layout. The gaps
// are zero.
class ParameterStore {
 public:
  ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  // Declares parameters that share all dims but the first and are stacked along it. The reference stays
  // valid. Throws Error if parts disagree, a name is repeated, or the store is materialised.
  Weight& add(std::vector<ParameterSpec> parts);

  // Allocates: float32 master, float32 zero gradients (unless `with_gradients` is false), compute copies.
  // compute_dtype: float32 or bfloat16. Weights are uninitialised until initialise() or a loader fills the
  // masters.
  void materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients = true);

  // Fills every master from (seed, name) alone, then refreshes compute. Values are generated on the CPU, so
  // they do not depend on the device.
  void initialise(uint64_t seed);

  // compute = master rounded. Call after masters change outside the optimizer.
  void refresh_compute();

  void zero_grad();

  std::span<Parameter> parameters() { return parameters_; }
  std::span<const Parameter> parameters() const { return parameters_; }
  const std::deque<Weight>& weights() const { return weights_; }
  Parameter* find(std::string_view name);

  // Flat buffers over all weights, gaps included: [padded_size()]. The gaps stay zero.
  at::Tensor& flat_master() { return flat_master_; }
  at::Tensor& flat_compute() { return flat_compute_; }
  at::Tensor& flat_grad() { return flat_grad_; }
  int64_t padded_size() const { return padded_size_; }
  int64_t parameter_count() const;  // elements, gaps excluded

  at::ScalarType compute_dtype() const { return compute_dtype_; }
  bool materialised() const { return materialised_; }

 private:
  std::vector<Parameter> parameters_;
  std::deque<Weight> weights_;
  at::Tensor flat_master_, flat_compute_, flat_grad_;
  int64_t padded_size_ = 0;
  at::ScalarType compute_dtype_ = at::kFloat;
  bool materialised_ = false;
};

// Fills `out` (float32, CPU) with the initial values of `spec` under `seed`.
void fill_initial_values(const ParameterSpec& spec, uint64_t seed, at::Tensor& out);

}  // namespace pptrain::nn
