#include "core/nn/cached_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/cpu/decode_attention.h"

namespace pptrain::nn {

namespace {

using at::Tensor;

// ATen wants [batch, heads, seq, head_dim], which is how a slot lies.
void decode_by_library(const Tensor& q, const KeyValueCache& cache, int64_t layer,
                       std::span<const CachedDocument> documents, Tensor& out) {
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const int64_t keys = documents[i].past + 1;
    const auto seen = [&](const Tensor& x) { return x.narrow(1, 0, keys).unsqueeze(0); };
    const Tensor query = q[row].unsqueeze(1).unsqueeze(0);
    out[row].copy_(at::scaled_dot_product_attention(query, seen(cache.keys(layer, documents[i].slot)),
                                                    seen(cache.values(layer, documents[i].slot)),
                                                    /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/false,
                                                    /*scale=*/std::nullopt, /*enable_gqa=*/true)
                       .squeeze(0)
                       .squeeze(1));
  }
}

void decode_by_kernel(const Tensor& q, const KeyValueCache& cache, int64_t layer,
                      std::span<const CachedDocument> documents, Tensor& out) {
  std::vector<kernels::cpu::CachedKeys> keys;
  keys.reserve(documents.size());
  for (const CachedDocument& document : documents) {
    keys.push_back({.k = cache.keys_begin(layer, document.slot),
                    .v = cache.values_begin(layer, document.slot),
                    .capacity = cache.capacity(document.slot),
                    .keys = document.past + 1});
  }
  kernels::cpu::decode_attention(q, cache.shape().kv_heads, keys, out);
}

}  // namespace

at::Tensor attend_to_cache(const Tensor& q, const KeyValueCache& cache, int64_t layer,
                           std::span<const CachedDocument> documents, bool by_library) {
  Tensor out = at::empty(q.sizes(), q.options());
  if (q.is_cpu() && !by_library) {
    decode_by_kernel(q, cache, layer, documents, out);
  } else {
    decode_by_library(q, cache, layer, documents, out);
  }
  return out;
}

CachedAttention::Use::Use(CachedAttention& attention, KeyValueCache& cache,
                          std::span<const CachedDocument> documents)
    : attention_(attention) {
  attention.cache_ = &cache;
  attention.documents_ = documents;
  attention.next_layer_ = 0;
}

CachedAttention::Use::~Use() {
  attention_.cache_ = nullptr;
  attention_.documents_ = {};
}

Tensor CachedAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, const TokenInfo& tokens,
                                Saved& saved) {
  if (cache_ == nullptr) return inner_->forward(q, k, v, tokens, saved);
  const tokens::Segments& segments = tokens.segments;
  if (tokens.context || segments.documents() != static_cast<int64_t>(documents_.size())) {
    throw Error(fmt::format("cached attention: {} documents are announced, the list has {}",
                            documents_.size(), segments.documents()));
  }
  const int64_t layer = next_layer_++;
  for (size_t i = 0; i < documents_.size(); ++i) {
    const auto document = static_cast<int64_t>(i);
    const int64_t first = segments.first(document), length = segments.length(document);
    cache_->write(layer, documents_[i].slot, documents_[i].past, k.narrow(0, first, length),
                  v.narrow(0, first, length));
  }
  const bool begins = std::ranges::all_of(documents_, [](const CachedDocument& d) { return d.past == 0; });
  if (begins) {
    AttentionStatistics unused;
    return causal_attention(q, k, v, segments, unused);
  }
  if (segments.longest != 1)
    throw Error(
        fmt::format("cached attention: {} new tokens behind earlier ones, one is allowed", segments.longest));
  return attend_to_cache(q, *cache_, layer, documents_, /*by_library=*/false);
}

AttentionGradients CachedAttention::backward(const Tensor& dout, const TokenInfo& tokens, Saved saved) {
  if (cache_ != nullptr) throw Error("cached attention has no backward pass");
  return inner_->backward(dout, tokens, std::move(saved));
}

}  // namespace pptrain::nn
