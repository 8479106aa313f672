#include "core/attention/cache.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/attention/cpu.h"
#include "core/base/error.h"
#include "core/kernels/out_of_memory.h"

namespace pptrain::attention {

namespace {

// Rows [tokens, kv_heads, head_dim] to [kv_heads, capacity, head_dim], from place `first` on.
void copy_heads(const at::Tensor& from, int64_t capacity, int64_t first, std::byte* to) {
  const auto item = static_cast<int64_t>(from.element_size());
  const int64_t tokens = from.size(0), heads = from.size(1), row = from.size(2) * item;
  const auto* const data = static_cast<const std::byte*>(from.const_data_ptr());
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t token = 0; token < tokens; ++token) {
      std::memcpy(to + (head * capacity + first + token) * row,
                  data + (token * from.stride(0) + head * from.stride(1)) * item, static_cast<size_t>(row));
    }
  }
}

}  // namespace

KeyValueCache::KeyValueCache(const Shape& shape, std::span<const int64_t> capacities)
    : shape_(shape), capacities_(capacities.begin(), capacities.end()), begins_{0} {
  for (const int64_t capacity : capacities_) {
    if (capacity < 1) throw Error(fmt::format("a cache of keys for {} tokens", capacity));
    begins_.push_back(begins_.back() + capacity);
  }
  const int64_t elements = shape.layers * 2 * begins_.back() * shape.kv_heads * shape.head_dim;
  memory_ = kernels::allocate_for(
      [&] {
        return fmt::format(
            "the keys and values of {} tokens in {} layers ({:.2f} GB)", begins_.back(), shape.layers,
            static_cast<double>(elements) * static_cast<double>(c10::elementSize(shape.dtype)) / 1e9);
      },
      [&] { return at::empty({elements}, at::TensorOptions(shape.dtype).device(shape.device)); });
}

int64_t KeyValueCache::bytes() const {
  return memory_.numel() * static_cast<int64_t>(memory_.element_size());
}

int64_t KeyValueCache::offset(int64_t layer, int64_t slot, int64_t which) const {
  return ((layer * 2 + which) * begins_.back() + begins_.at(static_cast<size_t>(slot))) * shape_.kv_heads *
         shape_.head_dim;
}

at::Tensor KeyValueCache::view(int64_t layer, int64_t slot, int64_t which) const {
  const int64_t tokens = capacity(slot);
  return memory_.narrow(0, offset(layer, slot, which), tokens * shape_.kv_heads * shape_.head_dim)
      .view({shape_.kv_heads, tokens, shape_.head_dim});
}

const void* KeyValueCache::begin(int64_t layer, int64_t slot, int64_t which) const {
  return static_cast<const std::byte*>(memory_.const_data_ptr()) +
         offset(layer, slot, which) * static_cast<int64_t>(memory_.element_size());
}

void KeyValueCache::write(int64_t layer, int64_t slot, int64_t first, const at::Tensor& k,
                          const at::Tensor& v) {
  const int64_t tokens = k.size(0);
  if (layer < 0 || layer >= shape_.layers || first < 0 || first + tokens > capacity(slot)) {
    throw Error(fmt::format("keys of tokens [{}, {}) for layer {} of a cache of {} layers and {} tokens",
                            first, first + tokens, layer, shape_.layers, capacity(slot)));
  }
  if (!memory_.is_cpu()) {
    keys(layer, slot).narrow(1, first, tokens).copy_(k.transpose(0, 1));
    values(layer, slot).narrow(1, first, tokens).copy_(v.transpose(0, 1));
    return;
  }
  auto* const data = static_cast<std::byte*>(memory_.mutable_data_ptr());
  const auto item = static_cast<int64_t>(memory_.element_size());
  copy_heads(k, capacity(slot), first, data + offset(layer, slot, 0) * item);
  copy_heads(v, capacity(slot), first, data + offset(layer, slot, 1) * item);
}

namespace {

using at::Tensor;

// Scores that LibTorch's attention does not know, by plain operators in float32. q: [1, heads, 1, head_dim];
// k, v: [1, kv_heads, keys, head_dim].
Tensor attend_by_operators(const AttentionCall& call, const Tensor& q, const Tensor& k, const Tensor& v) {
  const int64_t kv_heads = k.size(1), keys = k.size(2);
  const Tensor groups = q.to(at::kFloat).view({kv_heads, -1, q.size(3)});
  Tensor scores = at::matmul(groups, k[0].to(at::kFloat).transpose(1, 2)).mul_(scale_of(call));
  if (call.softcap != 0) scores.div_(call.softcap).tanh_().mul_(call.softcap);
  if (call.sinks.defined()) scores = at::cat({scores, call.sinks.view({kv_heads, -1, 1})}, 2);
  const Tensor weights = at::softmax(scores, 2).narrow(2, 0, keys);
  return at::matmul(weights, v[0].to(at::kFloat)).view(q.sizes());
}

// ATen wants [batch, heads, seq, head_dim], which is how a slot lies.
void decode_by_library(const AttentionCall& call, const KeyValueCache& cache, int64_t layer,
                       std::span<const CachedDocument> documents, Tensor& out) {
  for (size_t i = 0; i < documents.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const int64_t past = documents[i].past, keys = keys_seen(call, past);
    const auto seen = [&](const Tensor& x) { return x.narrow(1, past + 1 - keys, keys).unsqueeze(0); };
    const Tensor q = call.q[row].unsqueeze(1).unsqueeze(0);
    const Tensor k = seen(cache.keys(layer, documents[i].slot));
    const Tensor v = seen(cache.values(layer, documents[i].slot));
    const bool plain = call.softcap == 0 && !call.sinks.defined();
    out[row].copy_((plain ? at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0,
                                                             /*is_causal=*/false, call.scale,
                                                             /*enable_gqa=*/true)
                          : attend_by_operators(call, q, k, v))
                       .squeeze(0)
                       .squeeze(1));
  }
}

}  // namespace

int64_t keys_seen(const AttentionCall& call, int64_t past) {
  return call.window == 0 ? past + 1 : std::min(past + 1, call.window);
}

Tensor attend_to_cache(BackEnd back_end, const AttentionCall& call, const KeyValueCache& cache, int64_t layer,
                       std::span<const CachedDocument> documents) {
  require_taken(back_end, call);
  Tensor out = at::empty(call.q.sizes(), call.q.options());
  if (back_end == BackEnd::cpu_decode) {
    decode_on_cpu(call, cache, layer, documents, out);
  } else {
    decode_by_library(call, cache, layer, documents, out);
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

namespace {

bool has_no_past(const CachedDocument& document) {
  return document.past == 0;
}

}  // namespace

Tensor CachedAttention::forward(AttentionCall call, Saved& saved) {
  if (cache_ == nullptr) return inner_->forward(std::move(call), saved);
  const BackEnd back_end = call.q.is_cpu() ? BackEnd::cpu_decode : BackEnd::library_decode;
  require_taken(back_end, call);
  const tokens::Segments& segments = call.documents;
  if (segments.documents() != static_cast<int64_t>(documents_.size())) {
    throw Error(fmt::format("cached attention: {} documents are announced, the list has {}",
                            documents_.size(), segments.documents()));
  }
  const int64_t layer = next_layer_++;
  for (size_t i = 0; i < documents_.size(); ++i) {
    const auto document = static_cast<int64_t>(i);
    const int64_t first = segments.first(document), length = segments.length(document);
    cache_->write(layer, documents_[i].slot, documents_[i].past, call.k.narrow(0, first, length),
                  call.v.narrow(0, first, length));
  }
  if (std::ranges::all_of(documents_, has_no_past)) {
    Saved unused;
    return attend(std::move(call), unused);
  }
  if (std::ranges::none_of(documents_, has_no_past) && segments.longest == 1)
    return attend_to_cache(back_end, call, *cache_, layer, documents_);
  return attend_to_parts(call, back_end, layer);
}

// Documents that follow each other and have no past, or have one, together.
Tensor CachedAttention::attend_to_parts(const AttentionCall& call, BackEnd back_end, int64_t layer) const {
  const tokens::Segments& segments = call.documents;
  Tensor out = at::empty(call.q.sizes(), call.q.options());
  for (size_t begin = 0, end = 0; begin < documents_.size(); begin = end) {
    const bool whole = has_no_past(documents_[begin]);
    std::vector<int32_t> starts;
    const auto add = [&](size_t document) {
      starts.push_back(segments.host_starts[document] - segments.host_starts[begin]);
    };
    for (; end < documents_.size() && has_no_past(documents_[end]) == whole; ++end) add(end);
    add(end);
    const int64_t first = segments.first(static_cast<int64_t>(begin)), count = starts.back();
    AttentionCall part = call;
    for (Tensor* const tensor : {&part.q, &part.k, &part.v}) *tensor = tensor->narrow(0, first, count);
    part.documents = tokens::make_segments(std::move(starts), call.q.device());
    if (!whole && part.documents.longest != 1)
      throw Error(fmt::format("cached attention: {} new tokens behind earlier ones, one is allowed",
                              part.documents.longest));
    Saved unused;
    out.narrow(0, first, count)
        .copy_(whole
                   ? attend(std::move(part), unused)
                   : attend_to_cache(back_end, part, *cache_, layer, documents_.subspan(begin, end - begin)));
  }
  return out;
}

Gradients CachedAttention::backward(const Tensor& dout, Saved saved) {
  if (cache_ != nullptr) throw Error("cached attention has no backward pass");
  return inner_->backward(dout, std::move(saved));
}

}  // namespace pptrain::attention
