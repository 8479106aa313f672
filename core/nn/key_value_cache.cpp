#include "core/nn/key_value_cache.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <cstring>

#include "core/base/error.h"
#include "core/kernels/out_of_memory.h"

namespace pptrain::nn {

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

}  // namespace pptrain::nn
