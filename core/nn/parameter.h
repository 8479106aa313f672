// Parameters of one stage: what they are, in which groups they are gathered, reduced and freed, and which
// shard of each group this rank owns.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/kernels/fp8_kernels.h"
#include "core/nn/slice.h"

namespace pptrain::nn {

// What a parameter is for. Norms (with LayerNorm's bias, and attention's sinks), routers and balances compute
// in float32 under every compute type; norms, biases and balances do not decay. Norms start at norm_start,
// biases and balances at zero, all others at normally distributed values. A balance is no weight: it is added
// to the scores by which experts are chosen. Its gradient is each expert's load minus the mean.
enum class Role { matrix, embedding, head, norm, bias, router, balance };

// Which tensor-parallel ranks hold the same parameter, each with a part of its gradient: this one alone, all,
// or those with the same key-value head.
enum class Copies { one, tp, kv };

// The indices [begin, begin + size) of dim `dim`: under tensor or expert parallelism this rank's layers see
// only these.
struct Cut {
  int dim = 0;
  int64_t begin = 0;
  int64_t size = 0;
};

// What a parameter is, before it has any memory. `name` and `shape` are global ("layers.17.attn.q.weight"):
// the name, with the seed, alone decides the initial values, whichever rank builds which slice of it.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  Role role = Role::matrix;
  double init_std = 0.02;
  double norm_start = 1;  // every initial value of a norm
  // Takes the initial values of this name instead, so that a copy (a tied head) starts equal. Empty: `name`.
  std::string init_name = {};
  std::optional<Cut> cut = std::nullopt;
  Copies copies = Copies::one;
  // This rank counts the parameter in the gradient norm and in checkpoints. Among ranks that hold copies, one
  // does.
  bool counted = true;
  // It does not learn: it has neither master nor gradient nor optimizer state, compute weights alone.
  bool frozen = false;

  std::vector<int64_t> local_shape() const;  // what this rank's layers see
};

// This rank's shard of one parameter, as views of a buffer: of the parameter's local shape if the shard is
// all of it, else flat.
struct Slice {
  ParameterSpec spec;
  SliceShape shape;
  int64_t offset = 0;  // in this rank's shard of the buffer, in elements
  int64_t place = 0;   // in the whole buffer
  at::Tensor master;   // float32; undefined if frozen
  at::Tensor grad;     // float32 main gradient; undefined if frozen or in a group without gradients
  at::Tensor compute;  // compute type; the same memory as master if that is float32

  // What a loader fills, before refresh_compute().
  const at::Tensor& values() const { return spec.frozen ? compute : master; }
};

// Weights of one kind (compute type, copies, frozen or not, norms apart) in flat memory, with gaps that stay
// zero. Ranks that shard the buffer own equal ranges of it, in their order.
struct Buffer {
  at::ScalarType type = at::kFloat;  // of compute weights
  Copies copies = Copies::one;
  bool with_input = false;  // is_taken_with_input, of all that lie here
  bool frozen = false;      // all that lie here

  // This rank's shard.
  at::Tensor master;          // float32; undefined if frozen
  at::Tensor grad;            // float32; undefined without gradients
  at::Tensor compute;         // masters rounded; undefined if layers compute in float32 with the masters
  std::vector<Slice> slices;  // ascending

  // The whole buffer. Weights are gathered into it from each rank's rounded(), and must be gathered again
  // after masters change; gradients are summed over ranks into each rank's shard of it. In a group that is
  // not sharded both are the shard's own memory.
  at::Tensor whole_compute;  // `type`
  at::Tensor whole_grad;     // float32; undefined without gradients

  const at::Tensor& rounded() const { return compute.defined() ? compute : master; }

  // How often compute weights have changed: whoever writes to them counts it, so that copies of them know
  // whether they are of old ones.
  int64_t changes = 0;
};

// A weight's rows, or its columns as rows, in E4M3 (kernels/fp8_kernels.h): values [rows, cols]; scales
// float32 [rows].
struct Fp8Copy {
  at::Tensor values, scales;
  int64_t changes = -1;  // Buffer::changes of the weights that it copies
};

// Weight that a layer computes with: one or several parameters stacked along dim 0 (q, k, v; gate, up), so
// that one GEMM serves them all. Meta tensors until the group is materialised.
class Weight {
 public:
  std::vector<ParameterSpec> parameters;
  at::Tensor compute;  // compute type, float32 for norms; [rows of all parameters, ...]
  at::Tensor grad;     // float32
  size_t buffer = 0;   // of the group, from materialise() on
  int64_t offset = 0;  // in the whole buffer
  // Set by the layer before the group is materialised: it adds to grad only by weight_grad_queue.h.
  bool grad_by_products = false;
  // The values of grad mean nothing and stand for zeros: the next GEMM overwrites them.
  bool grad_is_unset = false;

  bool frozen() const { return parameters.front().frozen; }
  // grad; for a frozen weight, memory that nothing reads, for kernels that take both gradients in one pass.
  at::Tensor grad_or_scratch() const;

  // Set by the layer before the group is materialised: its GEMMs are in FP8.
  bool in_fp8 = false;
  bool grad_in_fp8 = false;  // its gradient's GEMM too
  // Copies of compute in FP8, made anew after compute weights have changed: once a step, or after each
  // gather.
  const Fp8Copy& fp8_rows() { return renewed(fp8_rows_, kernels::quantize_rows); }
  const Fp8Copy& fp8_columns() { return renewed(fp8_columns_, kernels::quantize_columns); }

 private:
  friend class ParameterGroup;
  using Quantize = kernels::Kernel<void(const at::Tensor&, at::Tensor&, at::Tensor&)>;

  void allocate_fp8(const Buffer& home, bool with_gradients);
  const Fp8Copy& renewed(Fp8Copy& copy, const Quantize& quantize);
  std::array<const Fp8Copy*, 2> fp8_copies() const { return {&fp8_rows_, &fp8_columns_}; }

  const Buffer* home_ = nullptr;  // of a weight in FP8
  Fp8Copy fp8_rows_, fp8_columns_;
};

// For a weight that a layer may lack.
inline bool is_learning(const Weight* weight) {
  return weight != nullptr && !weight->frozen();
}

// What learns of a model, asked as parameters are declared.
struct Learning {
  std::function<bool(const ParameterSpec&)> freezes = {};  // empty: nothing
  // Weights of linear layers that have an adapter (Linear); empty: none.
  std::function<bool(const ParameterSpec&)> adapts = {};
  int64_t rank = 0;  // of adapters
  double scale = 1;  // of their outputs
};

// Elements of each rank's shard, for `ranks` ranks and a buffer whose weights have so many elements; gaps are
// at its end. Shards are multiples of 1,024 elements, the blocks of kernels::add_squares.
int64_t shard_elements(int64_t elements, int ranks);

// Which of the equal shards of a group's buffers this rank owns.
struct ShardPlace {
  int index = 0;
  int count = 1;
  // Buffer::grad has memory of its own: whole gradients come and go (release_whole_grad). The caller that
  // sums them over ranks adds the sum to it. Else it is this rank's shard of the whole gradient.
  bool own_gradient = false;
  // Pipeline ranks own the shards (parallel/pipeline/embedding_shards.h), not the ranks that share the stage.
  bool of_pipeline = false;
};

// Norms' gradients, and loads for balances, are taken with the gradient of their input (I), all others' by
// the weights' pass (W).
inline bool is_taken_with_input(Role role) {
  return role == Role::norm || role == Role::balance;
}

// Parameters that are gathered, reduced and freed together: the embedding; one block, its experts, or its
// adapters; the final norm; the head. Weights lie in flat buffers: one for each compute type and kind of
// copies, norms apart. Each weight begins at a multiple of 64 elements, so that GEMMs see the same alignment
// (and give the same bits) on every layout.
class ParameterGroup {
 public:
  // of_experts: expert-parallel ranks have different experts, so other ranks than for most groups shard it.
  explicit ParameterGroup(std::string name = {}, bool of_experts = false, const Learning& learning = {})
      : name_(std::move(name)), of_experts_(of_experts), learning_(learning) {}
  ParameterGroup(const ParameterGroup&) = delete;
  ParameterGroup& operator=(const ParameterGroup&) = delete;

  // Declares parameters that share all dims but the first and are stacked along it. The reference stays
  // valid. Throws Error if parameters disagree, a name is repeated, or the group is materialised, UsageError
  // if some of them are frozen and others are not.
  Weight& add(std::vector<ParameterSpec> parameters);

  // Linear layers of this group that are declared from now on declare their adapters in `group`.
  void put_adapters_in(ParameterGroup& group);
  ParameterGroup* adapters() const { return adapters_; }
  bool is_of_adapters() const { return of_adapters_; }

  // Linear layers of this group that are declared from now on multiply in FP8.
  void multiply_in_fp8(bool weight_gradients = false) {
    in_fp8_ = true;
    grad_in_fp8_ = weight_gradients;
  }
  bool is_in_fp8() const { return in_fp8_; }
  bool is_grad_in_fp8() const { return grad_in_fp8_; }
  const Learning& learning() const { return learning_; }

  // Allocates: masters of this rank's shard, and zero gradients (unless `with_gradients` is false). Whole
  // compute weights of a sharded group have no memory before it is restored, nor have whole gradients if the
  // shard has its own. compute_dtype: float32 or bfloat16. Masters are zero until initialise() or a loader
  // fills them.
  void materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients = true,
                   const ShardPlace& place = {});

  // Fills this rank's masters from (seed, names) alone, then refreshes its shard of the compute weights.
  void initialise(uint64_t seed);

  // compute = master rounded, of this rank's shard. Call after masters change outside the optimizer.
  void refresh_compute();

  void zero_grad();
  // The same for a caller that takes gradients next and calls complete_grad before they are read: gradients
  // by GEMMs (Weight::grad_by_products) are left as they are and marked as unset, since the first one
  // overwrites them.
  void start_grad();
  // Zeros what is still unset of one buffer's gradient, or of all: weights that no GEMM wrote.
  void complete_grad(size_t buffer);
  void complete_grad();

  const std::string& name() const { return name_; }
  bool of_experts() const { return of_experts_; }
  const ShardPlace& place() const { return place_; }
  bool is_sharded() const { return place_.count > 1; }
  std::vector<Buffer*> buffers();
  std::vector<Slice*> slices();  // in the order of add(); only those with elements on this rank
  Slice* find(std::string_view name);

  // Frees the whole compute weights of a sharded group, and allocates them again, without values. Layers'
  // views of them stay valid.
  void release_whole_compute();
  void restore_whole_compute();
  // The same for one buffer's whole gradient if the shard has its own; it is restored as start_grad leaves
  // it. Nothing changes if it is there already.
  void release_whole_grad(size_t buffer);
  void restore_whole_grad(size_t buffer);

  std::vector<const ParameterSpec*> specs() const;  // all that was added, in order
  int64_t parameter_count() const;  // elements of the local shapes, of all shards, gaps excluded
  int64_t fp8_bytes() const;        // of the copies of whole weights in FP8

 private:
  size_t buffer_for(const ParameterSpec& spec);
  std::vector<int64_t> lay_out();
  void allocate(Buffer& buffer, int64_t size, at::Device device, bool with_gradients);
  void add_slices(const Weight& weight);
  void start_whole_grad(size_t buffer);
  void for_each_fp8_copy(const std::function<void(const at::Tensor&)>& body) const;

  std::string name_;
  bool of_experts_;
  Learning learning_;
  ParameterGroup* adapters_ = nullptr;
  bool of_adapters_ = false;
  bool in_fp8_ = false;
  bool grad_in_fp8_ = false;
  std::deque<Weight> weights_;
  std::deque<Buffer> buffers_;
  std::vector<std::pair<size_t, size_t>> order_;  // buffer and place in its slices, in the order of add()
  ShardPlace place_;
  at::ScalarType compute_dtype_ = at::kFloat;
  bool materialised_ = false;
};

// The groups of one stage.
class ParameterStore {
 public:
  explicit ParameterStore(Learning learning = {}) : learning_(std::move(learning)) {}

  ParameterGroup& add_group(std::string name, bool of_experts = false);  // the reference stays valid

  // The place of each group.
  using PlaceOf = std::function<ShardPlace(const ParameterGroup& group)>;
  // The same for every group, which is whole if `place_of` is empty. Throws Error too if two groups declare
  // one name.
  void materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients = true,
                   const PlaceOf& place_of = {});
  void initialise(uint64_t seed);
  void refresh_compute();
  void zero_grad();
  void start_grad();

  std::deque<ParameterGroup>& groups() { return groups_; }
  std::vector<Buffer*> buffers();
  std::vector<Slice*> slices();
  Slice* find(std::string_view name);
  std::vector<const ParameterSpec*> specs() const;
  int64_t parameter_count() const;
  at::ScalarType compute_dtype() const { return compute_dtype_; }

 private:
  Learning learning_;
  std::deque<ParameterGroup> groups_;
  at::ScalarType compute_dtype_ = at::kFloat;
};

// A key for random numbers of a parameter: it depends only on the name (a tied copy has the original's) and
// on `salt`.
uint64_t random_key(const ParameterSpec& spec, uint64_t salt);

// Fills `out` (float32 or bfloat16, any device, slice.numel() elements) with a slice of the initial values of
// `spec` under `seed`.
void fill_initial_values(const ParameterSpec& spec, const SliceShape& slice, uint64_t seed, at::Tensor& out);

}  // namespace pptrain::nn
