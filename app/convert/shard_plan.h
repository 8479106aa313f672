// How the weights of a Hugging Face directory are divided into files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace pptrain::app {

// transformers' max_shard_size.
inline constexpr uint64_t default_shard_bytes = 50'000'000'000;

// The numbers of the tensors in each file, in order: a file takes what comes until the next one would make it
// larger than `max_bytes`, as transformers does it; a tensor above that has a file of its own. One file at
// least.
std::vector<std::vector<size_t>> plan_shards(std::span<const uint64_t> tensor_bytes, uint64_t max_bytes);

// "model.safetensors", or of several "model-00001-of-00003.safetensors"; `shard` counts from 0.
std::string shard_name(size_t shard, size_t shards);
// Whether a file is named so.
bool is_shard_name(const std::string& name);

// model.safetensors.index.json: which file a tensor lies in, and the bytes of all tensors.
std::string index_text(const std::map<std::string, std::string>& file_of, uint64_t total_bytes);

}  // namespace pptrain::app
