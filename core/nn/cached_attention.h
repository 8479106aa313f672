// Attention of tokens whose earlier keys are cached: the product of generation.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/nn/attention_product.h"
#include "core/nn/key_value_cache.h"

namespace pptrain::nn {

// What a pass's document is in the cache.
struct CachedDocument {
  int64_t slot = 0;
  int64_t past = 0;  // tokens that the cache holds of it
};

// Of one stage. Passes go through `inner` as if this were not there, but those within a Use.
class CachedAttention final : public AttentionProduct {
 public:
  explicit CachedAttention(std::shared_ptr<AttentionProduct> inner) : inner_(std::move(inner)) {}

  // For one forward pass through all layers of the stage, in their order: `documents` are those of its token
  // list. Either none has a past (a prompt: causal attention, whose keys are kept), or each has one token.
  // All tokens of the list are this rank's. Both must outlive the use.
  class Use {
   public:
    Use(CachedAttention& attention, KeyValueCache& cache, std::span<const CachedDocument> documents);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    CachedAttention& attention_;
  };

  at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const TokenInfo& tokens,
                     Saved& saved) override;
  // Within a Use it throws Error: there is nothing to go back through.
  AttentionGradients backward(const at::Tensor& dout, const TokenInfo& tokens, Saved saved) override;

 private:
  std::shared_ptr<AttentionProduct> inner_;
  KeyValueCache* cache_ = nullptr;  // within a Use
  std::span<const CachedDocument> documents_;
  int64_t next_layer_ = 0;
};

// softmax(q k^T / sqrt(head_dim)) v of one query a document over the first past + 1 keys of its slot. q: T
// [documents, heads, head_dim], last stride 1 -> the same shape, contiguous. By our kernel on the CPU, by
// ATen's library elsewhere, or everywhere with `by_library`.
at::Tensor attend_to_cache(const at::Tensor& q, const KeyValueCache& cache, int64_t layer,
                           std::span<const CachedDocument> documents, bool by_library);

}  // namespace pptrain::nn
