// Global parameter names <-> Hugging Face tensors: which tensor holds a parameter, and where in it.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::models {

// Order of rows in a tensor that several parameters share. `of_parameter`: the parameters in the model's
// order, each with all of its rows. `of_head`: every parameter's rows of the first key-value head, then of
// the second. `in_turn`: every parameter's first row, then the second.
enum class Rows { of_parameter, of_head, in_turn };

// A module, which has a weight and may have a bias, or a tensor by its whole name (ending in `.weight`,
// `.bias` or `.sinks`). A '*' stands for a number, of the layer or of an expert; a tensor without the
// expert's number holds all experts. A global name may have several Hugging Face names, of which a directory
// has one. Parameters with one Hugging Face name share the tensor.
struct WeightName {
  std::string_view global;
  std::string_view hf;
  Rows rows = Rows::of_parameter;
  bool transposed = false;  // matrices are [in, out]
};

// The names of Llama and of the models built like it.
inline constexpr WeightName decoder_weights[] = {
    {"embed", "model.embed_tokens"},
    {"norm", "model.norm"},
    {"head", "lm_head"},
    {"layers.*.attn_norm", "model.layers.*.input_layernorm"},
    {"layers.*.attn.q", "model.layers.*.self_attn.q_proj"},
    {"layers.*.attn.k", "model.layers.*.self_attn.k_proj"},
    {"layers.*.attn.v", "model.layers.*.self_attn.v_proj"},
    {"layers.*.attn.o", "model.layers.*.self_attn.o_proj"},
    {"layers.*.attn.q_norm", "model.layers.*.self_attn.q_norm"},
    {"layers.*.attn.k_norm", "model.layers.*.self_attn.k_norm"},
    {"layers.*.mlp_norm", "model.layers.*.post_attention_layernorm"},
    {"layers.*.mlp.gate", "model.layers.*.mlp.gate_proj"},
    {"layers.*.mlp.up", "model.layers.*.mlp.up_proj"},
    {"layers.*.mlp.down", "model.layers.*.mlp.down_proj"},
};

// Names of sparse layers in addition to decoder_weights. transformers writes experts one by one or in one
// tensor.
inline constexpr WeightName qwen3_moe_weights[] = {
    {"layers.*.mlp.router", "model.layers.*.mlp.gate"},
    {"layers.*.mlp.experts.*.gate", "model.layers.*.mlp.experts.*.gate_proj"},
    {"layers.*.mlp.experts.*.up", "model.layers.*.mlp.experts.*.up_proj"},
    {"layers.*.mlp.experts.*.down", "model.layers.*.mlp.experts.*.down_proj"},
    {"layers.*.mlp.experts.*.gate.weight", "model.layers.*.mlp.experts.gate_up_proj"},
    {"layers.*.mlp.experts.*.up.weight", "model.layers.*.mlp.experts.gate_up_proj"},
    {"layers.*.mlp.experts.*.down.weight", "model.layers.*.mlp.experts.down_proj"},
};

// One table of two: names of weights, or keys of config.json.
template <typename T, size_t A, size_t B>
constexpr std::array<T, A + B> joined(const T (&first)[A], const T (&second)[B]) {
  std::array<T, A + B> all{};
  std::ranges::copy(first, all.begin());
  std::ranges::copy(second, all.begin() + A);
  return all;
}

// "layers.17.attn.q.weight" -> "model.layers.17.self_attn.q_proj.weight", the usual one of its names. Looks
// in `names`, then in decoder_weights. Throws Error for a name that is not in either list.
std::string hf_name(std::span<const WeightName> names, std::string_view global);
// All of its names.
std::vector<std::string> hf_names(std::span<const WeightName> names, std::string_view global);

// The inverse; if several parameters share the tensor, one of them. Nothing for a tensor that no parameter
// takes ("model.layers.0.self_attn.rotary_emb.inv_freq").
std::optional<std::string> global_name(std::span<const WeightName> names, std::string_view hf);

// Where a tensor holds a parameter, a matrix or, with one column, a vector: bands of rows, each at a stride.
// In elements of the tensor, in row-major order.
struct HfWeight {
  std::string parameter;  // global name
  std::vector<int64_t> shape;
  std::string tensor;
  int64_t first = 0;  // the parameter's first element
  int64_t bands = 1;  // divides the rows
  int64_t band_stride = 0, row_stride = 0, column_stride = 0;

  int64_t rows() const { return shape.front(); }
  int64_t columns() const { return shape.size() > 1 ? shape[1] : 1; }
  // The parameter's elements follow each other in the tensor.
  bool is_contiguous() const;
  // The parameter as a view of `tensor`, which is contiguous: [bands, rows of a band, columns].
  at::Tensor view_of(const at::Tensor& tensor) const;
  // Its rows [begin, end), [end - begin, columns]: a view, unless there are several bands.
  at::Tensor rows_of(const at::Tensor& tensor, int64_t begin, int64_t end) const;
};

// Fills `out` (float32 or bfloat16, slice.numel() elements) with a slice of the parameter; reads only its
// rows.
void copy_slice(const HfWeight& weight, const at::Tensor& tensor, const nn::SliceShape& slice,
                at::Tensor& out);

struct HfTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<HfWeight> parts;  // ascending, and together all of the tensor
  bool float32 = false;  // in files of every type, as transformers has the bias on the choice of experts
};

// All tensors that a Hugging Face directory may have for parameters.
class WeightMap {
 public:
  // specs: parameters that have a tensor, of whole layers, in the model's order. kv_heads: for Rows::of_head.
  WeightMap(std::span<const WeightName> names, const std::vector<const nn::ParameterSpec*>& specs, bool tied,
            int64_t kv_heads);

  // Null for a tensor that no parameter takes.
  const HfTensor* find(std::string_view tensor) const;
  // The tensors that may hold the parameter, the usual one first. A tied head has the embedding's tensors, of
  // which a directory may call one the head.
  const std::vector<std::string>& tensors_of(std::string_view parameter) const;
  // Where the parameter lies in one of these.
  HfWeight place(std::string_view parameter, const std::string& tensor) const;

 private:
  struct Shared;  // a tensor while parameters are added

  void add(std::span<const WeightName> names, const nn::ParameterSpec& spec,
           std::map<std::string, Shared>& shared);
  std::string_view stored_as(std::string_view parameter) const;

  bool tied_;
  std::map<std::string, HfTensor, std::less<>> tensors_;
  std::map<std::string, std::vector<std::string>, std::less<>> of_parameter_;
};

}  // namespace pptrain::models
