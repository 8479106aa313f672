// Attention of tokens whose earlier keys are cached: what generation runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/attention/attention.h"

namespace pptrain::attention {

// --- Keys and values of earlier tokens, for attention of tokens that come one at a time.

// For one stage: `slots` documents, each with room for as many tokens as it will ever have, allocated at
// once.
class KeyValueCache {
 public:
  struct Shape {
    int64_t layers = 0;
    int64_t kv_heads = 0;  // this rank's
    int64_t head_dim = 0;
    at::ScalarType dtype = at::kFloat;
    at::Device device = at::kCPU;
  };

  // capacities: tokens of each slot. Throws kernels::OutOfMemory that says how much was needed, and Error for
  // a capacity below 1.
  KeyValueCache(const Shape& shape, std::span<const int64_t> capacities);

  const Shape& shape() const { return shape_; }
  int64_t slots() const { return static_cast<int64_t>(capacities_.size()); }
  int64_t capacity(int64_t slot) const { return capacities_.at(static_cast<size_t>(slot)); }
  int64_t bytes() const;

  // T [kv_heads, capacity, head_dim], contiguous: views of the cache.
  at::Tensor keys(int64_t layer, int64_t slot) const { return view(layer, slot, 0); }
  at::Tensor values(int64_t layer, int64_t slot) const { return view(layer, slot, 1); }

  // Their addresses, without a tensor: decoding asks for these in every layer.
  const void* keys_begin(int64_t layer, int64_t slot) const { return begin(layer, slot, 0); }
  const void* values_begin(int64_t layer, int64_t slot) const { return begin(layer, slot, 1); }

  // Puts k and v (T [tokens, kv_heads, head_dim], last stride 1) at the places [first, first + tokens) of the
  // slot. Throws Error if they do not fit.
  void write(int64_t layer, int64_t slot, int64_t first, const at::Tensor& k, const at::Tensor& v);

 private:
  at::Tensor view(int64_t layer, int64_t slot, int64_t which) const;
  const void* begin(int64_t layer, int64_t slot, int64_t which) const;
  int64_t offset(int64_t layer, int64_t slot, int64_t which) const;  // in elements

  Shape shape_;
  std::vector<int64_t> capacities_;
  std::vector<int64_t> begins_;  // of each slot, in tokens; and their sum
  at::Tensor memory_;            // by layer, then keys and values, then slot
};

// A pass's document in the cache.
struct CachedDocument {
  int64_t slot = 0;
  int64_t past = 0;  // tokens that the cache holds of it
};

// For one stage. Passes go through `inner` as if this were not there, except those within a Use.
class CachedAttention final : public CoreAttention {
 public:
  explicit CachedAttention(std::shared_ptr<CoreAttention> inner) : inner_(std::move(inner)) {}

  // For one forward pass through all layers of the stage, in their order: `documents` are those of its token
  // list. Each has no past (causal attention, whose keys are kept), or one token. All tokens of the list are
  // this rank's. Cache and documents must outlive the use.
  class Use {
   public:
    Use(CachedAttention& attention, KeyValueCache& cache, std::span<const CachedDocument> documents);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    CachedAttention& attention_;
  };

  // Within a Use it throws Error for what the back end of cached keys does not take, also at a prompt.
  at::Tensor forward(AttentionCall call, Saved& saved) override;
  // Within a Use it throws Error: there is nothing to go back through.
  Gradients backward(const at::Tensor& dout, Saved saved) override;

 private:
  at::Tensor attend_to_parts(const AttentionCall& call, BackEnd back_end, int64_t layer) const;

  std::shared_ptr<CoreAttention> inner_;
  KeyValueCache* cache_ = nullptr;  // within a Use
  std::span<const CachedDocument> documents_;
  int64_t next_layer_ = 0;
};

// Keys that a query behind `past` tokens sees, itself included: all of them or the last `window`.
int64_t keys_seen(const AttentionCall& call, int64_t past);

// Attention of one query a document to the first past + 1 keys of its slot, or those within the window, by
// one back end (cpu_decode or library_decode). The call's k and v are not read: they are in the cache
// already. Shapes: q: T [documents, heads, head_dim], last stride 1 -> the same shape, contiguous. Throws
// Error for what the back end does not take.
at::Tensor attend_to_cache(BackEnd back_end, const AttentionCall& call, const KeyValueCache& cache,
                           int64_t layer, std::span<const CachedDocument> documents);

}  // namespace pptrain::attention
