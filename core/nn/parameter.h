// Parameters of one stage: what they are, in which groups they are gathered, reduced and freed, and which
// part of each this rank answers for.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/nn/slice.h"

namespace pptrain::nn {

enum class Init { normal, ones, zeros };

// What a parameter is for. Norms, routers and balances compute in float32 under every compute type; norms,
// biases and balances do not decay. A balance is no weight: it is added to the scores by which experts are
// chosen, and its gradient is how far each expert's load is above the mean.
enum class Role { matrix, embedding, head, norm, bias, router, balance };

// Which tensor-parallel ranks hold the same parameter, each with a part of its gradient: this one alone, all,
// or those with the same key-value head.
enum class Copies { one, tp, kv };

// Layers of this rank compute with the indices [begin, begin + size) of dim `dim` alone, under tensor or
// expert parallelism.
struct Cut {
  int dim = 0;
  int64_t begin = 0;
  int64_t size = 0;
};

// What a parameter is, before it has any memory. `name` and `shape` are global ("layers.17.attn.q.weight"):
// the name, with the seed, alone decides the initial values, whichever rank builds which part of it.
struct ParameterSpec {
  std::string name;
  std::vector<int64_t> shape;
  Role role = Role::matrix;
  Init init = Init::normal;
  double init_std = 0.02;
  // Initial values are those of this name instead, so that a copy (a tied head) starts equal. Empty: `name`.
  std::string init_name = {};
  std::optional<Cut> cut = std::nullopt;
  Copies copies = Copies::one;
  // This rank answers for the parameter in the gradient norm and in checkpoints. Of ranks that hold copies,
  // one does.
  bool counted = true;

  std::vector<int64_t> local_shape() const;  // what this rank's layers see
};

// This rank's part of one parameter, as views of a shard's buffers: of the parameter's local shape where the
// slice is all of it, else flat.
struct Slice {
  ParameterSpec spec;
  SliceShape shape;
  int64_t offset = 0;  // in the shard's flat buffers, in elements
  int64_t place = 0;   // in the buffer over all parts
  at::Tensor master;   // float32
  at::Tensor grad;     // float32 main gradient; undefined in a group without gradients
  at::Tensor compute;  // compute type; the same memory as master where that is float32
};

// What this rank holds of the parameters of one kind (compute type, copies, norms apart): flat buffers of
// equal size, with gaps between the slices that stay zero.
struct Shard {
  at::Tensor master;          // float32
  at::Tensor grad;            // float32; undefined without gradients
  at::Tensor compute;         // masters rounded; undefined where layers compute in float32
  std::vector<Slice> slices;  // ascending
  Copies copies = Copies::one;

  const at::Tensor& rounded() const { return compute.defined() ? compute : master; }
};

// What a layer computes with: one or several parameters stacked along dim 0 (q, k, v; gate, up), so that one
// matrix product serves them all. Meta tensors until the group is materialised.
struct Weight {
  at::Tensor compute;  // compute type, float32 for norms; [rows of all parts, ...]
  at::Tensor grad;     // float32
  // The layer says, before the group is materialised: it adds to grad by weight_gradient.h alone.
  bool grad_by_products = false;
  // What grad holds means nothing, and it stands for zeros: the next product overwrites it.
  bool grad_is_unset = false;
};

// How a group is divided: this rank answers for the part-th of `parts` equal pieces of each of its buffers.
// Pieces are multiples of 1,024 elements, the blocks of kernels::add_squares.
struct Division {
  int part = 0;
  int parts = 1;
  // Shard::grad has memory of its own: whole gradients come and go (release_whole_grad), and who sums them
  // over ranks adds the sum to it. Else it is this rank's piece of the whole gradient.
  bool own_gradient = false;
};

// Norms' gradients, and loads for balances, are taken with the gradient of their input (I), all others' by
// the weights' pass (W).
inline bool is_taken_with_input(Role role) {
  return role == Role::norm || role == Role::balance;
}

// Over which ranks a parameter group is divided: as most are, or as the experts that several ranks share out.
enum class Spread { dense, experts };

// Parameters that are gathered, reduced and freed together: the embedding; one block, or its experts; the
// final norm; the head. Weights lie in flat buffers, those of one compute type and one kind of copies in one,
// norms apart, each at a multiple of 64 elements, so that matrix products see the same alignment (and give
// the same bits) on every layout.
class ParameterGroup {
 public:
  explicit ParameterGroup(std::string name = {}, Spread spread = Spread::dense)
      : name_(std::move(name)), spread_(spread) {}
  ParameterGroup(const ParameterGroup&) = delete;
  ParameterGroup& operator=(const ParameterGroup&) = delete;

  // Declares parameters that share all dims but the first and are stacked along it. The reference stays
  // valid. Throws Error if parts disagree, a name is repeated, or the group is materialised.
  Weight& add(std::vector<ParameterSpec> parts);

  // Allocates: masters of this rank's part, and zero gradients (unless `with_gradients` is false). Whole
  // compute weights of a divided group, and whole gradients beside own ones, have no memory before it is
  // restored. compute_dtype: float32 or bfloat16. Masters are zero until initialise() or a loader fills them.
  void materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients = true,
                   const Division& division = {});

  // Fills this rank's masters from (seed, names) alone, then refreshes its part of the compute weights.
  void initialise(uint64_t seed);

  // compute = master rounded, of this rank's part. Call after masters change outside the optimizer.
  void refresh_compute();

  void zero_grad();
  // The same for who takes gradients next and calls complete_grad before anybody reads them: gradients by
  // products (Weight) are left as they are and marked as unset, since the first product overwrites them.
  void start_grad();
  // Zeros in what is still unset of one buffer's gradient, or of all: weights that no product was taken of.
  void complete_grad(size_t buffer);
  void complete_grad();

  const std::string& name() const { return name_; }
  Spread spread() const { return spread_; }
  std::vector<Shard*> shards();
  std::vector<Slice*> slices();  // in the order of add(); only those with elements on this rank
  Slice* find(std::string_view name);

  // The buffers over all ranks of the division, one for each of shards(): piece p of Division::parts has the
  // elements [p, p + 1) * size / parts. Weights are gathered into `compute` from each rank's
  // Shard::rounded(), and must be gathered again after masters change; gradients are summed over ranks into
  // each rank's piece of `grad`. In a group that is not divided both are the shard's own memory.
  struct Whole {
    at::Tensor compute;  // float32 or the compute type; the masters' memory where that is whole and float32
    at::Tensor grad;     // float32; undefined without gradients
    Copies copies = Copies::one;
    bool with_input = false;  // is_taken_with_input, of all that lie here
  };
  std::vector<Whole>& whole() { return whole_; }
  const Division& division() const { return division_; }

  // Frees the whole compute weights of a divided group, and takes memory for them again, without values. What
  // layers hold of them stays valid.
  void release_whole_compute();
  void restore_whole_compute();
  // The same of one buffer's whole gradient where shards have own gradients; it is restored as start_grad
  // leaves it. Nothing changes where it is there already.
  void release_whole_grad(size_t buffer);
  void restore_whole_grad(size_t buffer);
  int64_t whole_bytes()
      const;  // that whole compute weights and gradients hold now, where they can be released

  std::vector<const ParameterSpec*> specs() const;  // all that was added, in order
  int64_t parameter_count() const;  // elements of the local shapes, over all parts, gaps excluded
  at::ScalarType compute_dtype() const { return compute_dtype_; }

 private:
  struct Declared {
    std::vector<ParameterSpec> parts;
    Weight weight;
    size_t buffer = 0;   // index into shards_ and whole_
    int64_t offset = 0;  // in the whole buffer
    int64_t size = 0;    // elements
  };
  void lay_out(at::ScalarType compute_dtype);
  void allocate(size_t buffer, at::Device device, bool with_gradients);
  void add_slices(const Declared& declared);
  void start_whole_grad(size_t buffer);

  // What the parameters of one buffer have in common.
  struct Kind {
    at::ScalarType type;
    Copies copies;
    bool with_input;
    friend bool operator==(const Kind&, const Kind&) = default;
  };
  Kind kind_of(const ParameterSpec& spec, at::ScalarType compute_dtype) const;

  std::string name_;
  Spread spread_;
  std::deque<Declared> declared_;
  std::vector<Kind> kinds_;     // [buffer]
  std::vector<int64_t> sizes_;  // [buffer] elements over all parts, gaps included
  std::vector<Whole> whole_;
  std::deque<Shard> shards_;
  std::vector<std::pair<size_t, size_t>> order_;  // buffer and place in its slices, in the order of add()
  Division division_;
  at::ScalarType compute_dtype_ = at::kFloat;
  bool materialised_ = false;
};

// How a stage's groups are divided, by their spread.
struct Divisions {
  Division dense;
  Division experts;
};

// The groups of one stage.
class ParameterStore {
 public:
  ParameterGroup& add_group(std::string name, Spread spread = Spread::dense);  // the reference stays valid

  // The same for every group. materialise throws Error too where two groups declare one name.
  void materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients = true,
                   const Divisions& divisions = {});
  void initialise(uint64_t seed);
  void refresh_compute();
  void zero_grad();
  void start_grad();

  std::deque<ParameterGroup>& groups() { return groups_; }
  std::vector<Shard*> shards();
  std::vector<Slice*> slices();
  Slice* find(std::string_view name);
  std::vector<const ParameterSpec*> specs() const;
  int64_t parameter_count() const;
  at::ScalarType compute_dtype() const { return compute_dtype_; }

 private:
  std::deque<ParameterGroup> groups_;
  at::ScalarType compute_dtype_ = at::kFloat;
};

// Copies a slice of the whole parameter (any floating-point type, any device) into `out` (float32,
// slice.numel() elements).
void copy_slice(const at::Tensor& whole, const SliceShape& slice, at::Tensor& out);

// Fills `out` (float32, any device, slice.numel() elements) with a slice of the initial values of `spec`
// under `seed`.
void fill_initial_values(const ParameterSpec& spec, const SliceShape& slice, uint64_t seed, at::Tensor& out);

}  // namespace pptrain::nn
