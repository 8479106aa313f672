#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/safetensors.h"
#include "core/io/safetensors_format.h"

namespace pptrain::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is little-endian");

// A tensor on a device comes over in pieces of this many bytes.
constexpr int64_t piece_bytes = int64_t{64} << 20;
// Pieces that are asked for stay in a core's cache until they are summed and written.
constexpr uint64_t fill_bytes = uint64_t{1} << 20;

uint64_t byte_size(const TensorSpec& spec) {
  uint64_t bytes = c10::elementSize(spec.dtype);
  for (const int64_t dim : spec.shape) bytes *= static_cast<uint64_t>(dim);
  return bytes;
}

std::string shape_text(at::IntArrayRef shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorSpec>& tensors, const Metadata& metadata)
    : file_(path) {
  std::vector<TensorSpec> order = tensors;
  std::ranges::stable_sort(order, [](const auto& a, const auto& b) {
    return c10::elementSize(a.dtype) > c10::elementSize(b.dtype);
  });
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[metadata_key] = metadata;
  uint64_t end = 0;
  for (const TensorSpec& spec : order) {
    const uint64_t begin = end;
    end += byte_size(spec);
    if (spec.name.empty() || spec.name == metadata_key) {
      throw Error(fmt::format("'{}': '{}' cannot be the name of a tensor", path.string(), spec.name));
    }
    header[spec.name] = {
        {"dtype", dtype_name(spec.dtype)}, {"shape", spec.shape}, {"data_offsets", {begin, end}}};
    if (!entries_.emplace(spec.name, Entry{.spec = spec, .begin = begin}).second) {
      throw Error(fmt::format("'{}': two tensors are named '{}'", path.string(), spec.name));
    }
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts at a multiple of 8
  if (text.size() > max_header_bytes) {
    throw Error(fmt::format("'{}': a header of {} bytes is longer than the format's {}", path.string(),
                            text.size(), max_header_bytes));
  }
  const std::array<uint64_t, 1> length{text.size()};
  file_.write(std::as_bytes(std::span(length)));
  file_.write(std::as_bytes(std::span(text)));
  const uint64_t data_begin = sizeof(uint64_t) + text.size();
  for (auto& [name, entry] : entries_) entry.begin += data_begin;
  size_ = data_begin + end;
}

SafetensorsWriter SafetensorsWriter::with_header(const std::filesystem::path& path,
                                                 std::span<const std::byte> bytes) {
  Header header = parse_header(bytes, fmt::format("'{}'", path.string()));
  SafetensorsWriter writer{OutputFile(path)};
  writer.file_.write(bytes.first(header.bytes));
  writer.size_ = header.bytes + header.data_bytes();
  for (DescribedTensor& tensor : header.tensors) {
    std::string name = tensor.spec.name;
    writer.entries_.emplace(std::move(name),
                            Entry{.spec = std::move(tensor.spec), .begin = header.bytes + tensor.begin});
  }
  return writer;
}

SafetensorsWriter::Entry& SafetensorsWriter::take(const std::string& name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw Error(fmt::format("'{}': the tensor '{}' was not declared", file_.path().string(), name));
  }
  Entry& entry = found->second;
  if (entry.written)
    throw Error(fmt::format("'{}': the tensor '{}' comes twice", file_.path().string(), name));
  return entry;
}

std::string SafetensorsWriter::write_pieces(const std::string& name, const Fill& fill) {
  Entry& entry = take(name);
  entry.written = true;
  const uint64_t size = byte_size(entry.spec);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(size, fill_bytes));
  Checksum checksum;
  for (uint64_t begin = 0; begin < size; begin += fill_bytes) {
    const std::span piece(buffer.get(), std::min(fill_bytes, size - begin));
    fill(begin, piece);
    checksum.add(piece);
    file_.write_at(entry.begin + begin, piece);
  }
  return checksum.hex();
}

std::string SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  Entry& entry = take(name);
  if (tensor.scalar_type() != entry.spec.dtype || tensor.sizes() != at::IntArrayRef(entry.spec.shape)) {
    throw Error(fmt::format("'{}': the tensor '{}' is {} {}, but was declared as {} {}",
                            file_.path().string(), name, c10::toString(tensor.scalar_type()),
                            shape_text(tensor.sizes()), c10::toString(entry.spec.dtype),
                            shape_text(entry.spec.shape)));
  }
  entry.written = true;
  const at::Tensor flat = tensor.contiguous().view({-1});
  const int64_t piece =
      flat.is_cpu() ? flat.numel() : piece_bytes / static_cast<int64_t>(flat.element_size());
  uint64_t offset = entry.begin;
  Checksum checksum;
  for (int64_t first = 0; first < flat.numel(); first += piece) {
    const at::Tensor part = flat.narrow(0, first, std::min(piece, flat.numel() - first)).cpu();
    const std::span bytes(static_cast<const std::byte*>(part.const_data_ptr()), part.nbytes());
    checksum.add(bytes);
    file_.write_at(offset, bytes);
    offset += bytes.size();
  }
  return checksum.hex();
}

uint64_t SafetensorsWriter::finish() {
  for (const auto& [name, entry] : entries_) {
    if (!entry.written)
      throw Error(fmt::format("'{}': the tensor '{}' was not written", file_.path().string(), name));
  }
  file_.sync_and_close();
  return size_;
}

void write_safetensors(const std::filesystem::path& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  SafetensorsWriter writer(path, specs, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

}  // namespace pptrain::io
