#include "core/io/safetensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/git_lfs.h"
#include "core/io/strict_json.h"

namespace pptrain::io {

namespace {

constexpr std::pair<at::ScalarType, const char*> dtype_names[] = {
    {at::ScalarType::Double, "F64"},
    {at::ScalarType::Float, "F32"},
    {at::ScalarType::Half, "F16"},
    {at::ScalarType::BFloat16, "BF16"},
    {at::ScalarType::Float8_e4m3fn, "F8_E4M3"},
    {at::ScalarType::Float8_e5m2, "F8_E5M2"},
    {at::ScalarType::ComplexFloat, "C64"},
    {at::ScalarType::Long, "I64"},
    {at::ScalarType::Int, "I32"},
    {at::ScalarType::Short, "I16"},
    {at::ScalarType::Char, "I8"},
    {at::ScalarType::UInt64, "U64"},
    {at::ScalarType::UInt32, "U32"},
    {at::ScalarType::UInt16, "U16"},
    {at::ScalarType::Byte, "U8"},
    {at::ScalarType::Bool, "BOOL"},
};

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [known, name] : dtype_names) {
    if (known == dtype) return name;
  }
  throw Error(std::string("safetensors has no type for ") + c10::toString(dtype));
}

at::ScalarType parse_dtype(const std::string& name) {
  for (const auto& [dtype, known] : dtype_names) {
    if (known == name) return dtype;
  }
  throw Error("the type '" + name + "' is not supported");
}

namespace {

using nlohmann::json;

// An integer of a header, as the field it is for; throws with `what` in front.
uint64_t header_integer(const json& value, uint64_t max, const std::string& what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > max) {
    throw Error(fmt::format("{}: {} is not an integer from 0 to {}", what, value.dump(), max));
  }
  return value.get<uint64_t>();
}

const json& field(const json& object, const char* name, bool (json::*is_type)() const noexcept,
                  const std::string& what) {
  const auto found = object.find(name);
  if (found == object.end() || !((*found).*is_type)()) {
    throw Error(fmt::format("{}: '{}' is missing or of the wrong kind", what, name));
  }
  return *found;
}

TensorSpec describe(const std::string& name, const json& value, const std::string& file) {
  const std::string what = fmt::format("{}: tensor '{}'", file, name);
  if (!value.is_object()) throw Error(what + ": not an object with dtype, shape and data_offsets");
  TensorSpec result;
  result.name = name;
  const auto& dtype = field(value, "dtype", &json::is_string, what).get_ref<const std::string&>();
  try {
    result.dtype = parse_dtype(dtype);
  } catch (const Error& error) {
    throw Error(what + ": " + error.what());
  }
  constexpr auto max_bytes = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t bytes = c10::elementSize(result.dtype);
  uint64_t stride = bytes;  // in bytes; a dim of 0 counts as 1, as in a tensor's strides
  for (const json& dim : field(value, "shape", &json::is_array, what)) {
    const uint64_t size = header_integer(dim, max_bytes, what + ": shape");
    if (size != 0 && stride > max_bytes / size) throw Error(what + ": the shape overflows");
    stride *= std::max<uint64_t>(size, 1);
    bytes *= size;
    result.shape.push_back(static_cast<int64_t>(size));
  }
  const json& offsets = field(value, "data_offsets", &json::is_array, what);
  if (offsets.size() != 2) throw Error(what + ": data_offsets is not a pair");
  result.begin = header_integer(offsets[0], max_bytes, what + ": data_offsets");
  result.end = header_integer(offsets[1], max_bytes, what + ": data_offsets");
  if (result.end < result.begin || result.end - result.begin != bytes) {
    throw Error(fmt::format("{}: data_offsets [{}, {}] do not fit {} bytes of {} [{}]", what, result.begin,
                            result.end, bytes, dtype, fmt::join(result.shape, ", ")));
  }
  return result;
}

Metadata read_metadata(const json& value, const std::string& file) {
  if (!value.is_object()) throw Error(file + ": __metadata__ is not an object of strings");
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) throw Error(fmt::format("{}: __metadata__ '{}' is not a string", file, key));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

// The JSON document, of `length` bytes behind its length.
json read_document(std::span<const std::byte> bytes, uint64_t& length, const std::string& file) {
  refuse_git_lfs_pointer({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file);
  if (bytes.size() < sizeof(length)) throw Error(fmt::format("{}: too short for a safetensors file", file));
  std::memcpy(&length, bytes.data(), sizeof(length));
  if (length > max_header_bytes) {
    throw Error(fmt::format("{}: a header of {} bytes is longer than the format's {}", file, length,
                            max_header_bytes));
  }
  if (length > bytes.size() - sizeof(length)) {
    throw Error(fmt::format("{}: the header has {} bytes, the file only {}; it is cut off", file, length,
                            bytes.size()));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof(length), length);
  if (!text.starts_with('{')) throw Error(file + ": the header does not start with '{'");
  return parse_strict_json(text, file + ": header", 4);
}

}  // namespace

Header parse_header(std::span<const std::byte> bytes, const std::string& file) {
  Header header;
  uint64_t length = 0;
  const json document = read_document(bytes, length, file);
  header.bytes = sizeof(length) + length;
  for (const auto& [name, value] : document.items()) {
    if (name == metadata_key) {
      header.metadata = read_metadata(value, file);
    } else {
      header.tensors.push_back(describe(name, value, file));
    }
  }
  std::ranges::sort(header.tensors, {}, [](const TensorSpec& d) { return std::pair(d.begin, d.end); });
  uint64_t position = 0;
  for (const TensorSpec& d : header.tensors) {
    if (d.begin != position) {
      throw Error(
          fmt::format("{}: tensor '{}' begins at byte {} of the data instead of {}: a gap or an overlap",
                      file, d.name, d.begin, position));
    }
    position = d.end;
  }
  return header;
}

// The file's first bytes, as many as its header takes. Read, not mapped: a bad sector is an Error that the
// caller can answer by another file, while a mapping would end the process.
static std::vector<std::byte> read_header(const std::filesystem::path& path) {
  const RegularFile file(path);
  uint64_t length = 0;
  std::vector<std::byte> bytes(std::min<uint64_t>(sizeof(length), file.size()));
  file.read(0, bytes);
  if (bytes.size() < sizeof(length)) return bytes;
  std::memcpy(&length, bytes.data(), sizeof(length));
  bytes.resize(std::min(sizeof(length) + std::min(length, max_header_bytes), file.size()));
  file.read(0, bytes);
  return bytes;
}

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) {
  const std::string file = fmt::format("'{}'", path.string());
  header_ = parse_header(read_header(path), file);
  file_ = std::make_shared<const MappedFile>(path);
  if (file_size() < header_.bytes) throw Error(file + ": it was shortened while it was opened");
  const uint64_t data = file_size() - header_.bytes;
  for (const TensorSpec& d : header_.tensors) {
    if (d.end > data) {
      throw Error(fmt::format("{}: tensor '{}' ends at byte {} of the data, the file has {}; it is cut off",
                              file, d.name, d.end, data));
    }
    places_.emplace(d.name, places_.size());
  }
  if (header_.data_bytes() != data) {
    throw Error(
        fmt::format("{}: {} bytes of data, but the tensors take {}", file, data, header_.data_bytes()));
  }
}

const TensorSpec& SafetensorsReader::spec(const std::string& name) const {
  const auto found = places_.find(name);
  if (found == places_.end()) throw Error(fmt::format("'{}' has no tensor '{}'", path().string(), name));
  return header_.tensors[found->second];
}

at::Tensor SafetensorsReader::view(const std::string& name) const {
  const TensorSpec& spec = this->spec(name);
  const std::span<const std::byte> from = bytes(name);
  const auto options = at::TensorOptions().dtype(spec.dtype);
  const auto address = reinterpret_cast<uintptr_t>(from.data());
  if (from.empty() || address % c10::elementSize(spec.dtype) != 0) {
    const at::Tensor copy = at::empty(spec.shape, options);
    if (!from.empty()) std::memcpy(copy.data_ptr(), from.data(), from.size());
    return copy;
  }
  return at::from_blob(
      const_cast<std::byte*>(from.data()), spec.shape, [file = file_](void*) {}, options);
}

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
  for (TensorSpec& spec : order) {
    spec.begin = end;
    spec.end = end += byte_size(spec);
    if (spec.name.empty() || spec.name == metadata_key) {
      throw Error(fmt::format("'{}': '{}' cannot be the name of a tensor", path.string(), spec.name));
    }
    header[spec.name] = {
        {"dtype", dtype_name(spec.dtype)}, {"shape", spec.shape}, {"data_offsets", {spec.begin, spec.end}}};
    if (!tensors_.emplace(spec.name, spec).second) {
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
  for (auto& [name, tensor] : tensors_) {
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  size_ = data_begin + end;
}

SafetensorsWriter SafetensorsWriter::with_header(const std::filesystem::path& path,
                                                 std::span<const std::byte> bytes) {
  Header header = parse_header(bytes, fmt::format("'{}'", path.string()));
  SafetensorsWriter writer{OutputFile(path)};
  writer.file_.write(bytes.first(header.bytes));
  writer.size_ = header.bytes + header.data_bytes();
  for (TensorSpec& tensor : header.tensors) {
    std::string name = tensor.name;
    tensor.begin += header.bytes;
    tensor.end += header.bytes;
    writer.tensors_.emplace(std::move(name), std::move(tensor));
  }
  return writer;
}

const TensorSpec& SafetensorsWriter::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(fmt::format("'{}': the tensor '{}' was not declared", file_.path().string(), name));
  }
  if (written_.contains(name))
    throw Error(fmt::format("'{}': the tensor '{}' comes twice", file_.path().string(), name));
  return found->second;
}

std::string SafetensorsWriter::write_pieces(const std::string& name, const Fill& fill) {
  const TensorSpec& declared = find(name);
  written_.insert(name);
  const uint64_t size = declared.end - declared.begin;
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(size, fill_bytes));
  Checksum checksum;
  for (uint64_t begin = 0; begin < size; begin += fill_bytes) {
    const std::span piece(buffer.get(), std::min(fill_bytes, size - begin));
    fill(begin, piece);
    checksum.add(piece);
    file_.write_at(declared.begin + begin, piece);
  }
  return checksum.hex();
}

std::string SafetensorsWriter::write(const std::string& name, const at::Tensor& tensor) {
  const TensorSpec& spec = find(name);
  if (tensor.scalar_type() != spec.dtype || tensor.sizes() != at::IntArrayRef(spec.shape)) {
    throw Error(fmt::format("'{}': the tensor '{}' is {} {}, but was declared as {} {}",
                            file_.path().string(), name, c10::toString(tensor.scalar_type()),
                            shape_text(tensor.sizes()), c10::toString(spec.dtype), shape_text(spec.shape)));
  }
  written_.insert(name);
  const at::Tensor flat = tensor.contiguous().view({-1});
  const int64_t piece =
      flat.is_cpu() ? flat.numel() : piece_bytes / static_cast<int64_t>(flat.element_size());
  uint64_t offset = spec.begin;
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
  for (const auto& [name, tensor] : tensors_) {
    if (!written_.contains(name))
      throw Error(fmt::format("'{}': the tensor '{}' was not written", file_.path().string(), name));
  }
  file_.sync_and_close();
  return size_;
}

}  // namespace pptrain::io
