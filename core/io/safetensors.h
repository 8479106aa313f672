// The safetensors format (huggingface/safetensors): 8 bytes of header length (little-endian), a JSON header
// {name: {dtype, shape, data_offsets}, "__metadata__": {string: string}}, then the tensors' bytes without
// gaps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/io/files.h"
#include "core/io/mapped_file.h"

namespace pptrain::io {

struct TensorSpec {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  // Its bytes, counted from the end of the header: as a header says, and unread if a file is to be made.
  uint64_t begin = 0;
  uint64_t end = 0;
};

using Metadata = std::map<std::string, std::string>;

// The format's name of a type ("F32", "BF16", ...) and back. Throw Error on a type that the other side lacks.
std::string dtype_name(at::ScalarType dtype);
at::ScalarType parse_dtype(const std::string& name);

inline constexpr uint64_t max_header_bytes = 100'000'000;
inline constexpr const char* metadata_key = "__metadata__";

struct Header {
  uint64_t bytes = 0;  // that it takes at the beginning of the file, its length included
  Metadata metadata;
  std::vector<TensorSpec> tensors;  // in the order of their bytes, without a gap from 0 on

  uint64_t data_bytes() const { return tensors.empty() ? 0 : tensors.back().end; }
};

// Header of a file that begins with these bytes. Throws Error, which begins with `file`, if the header is not
// whole or breaks a rule of the format.
Header parse_header(std::span<const std::byte> bytes, const std::string& file);

// Writes a new file tensor by tensor; nothing is held in memory but a piece of one. The file is not complete
// before finish(). Tensors lie in the order of falling element size, then as declared, so that each is
// aligned.
class SafetensorsWriter {
 public:
  // Creates the file (one that is there is an error) and writes the header. Throws Error on a repeated, empty
  // or reserved name, an unsupported type, a header that is too long.
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorSpec>& tensors,
                    const Metadata& metadata = {});

  // A file whose header is there already, byte for byte: `header` is the beginning of a file of the format
  // (of another program, perhaps), which says where each tensor lies.
  static SafetensorsWriter with_header(const std::filesystem::path& path, std::span<const std::byte> header);

  // Writes one declared tensor, in any order, from any device. Throws Error if it was not declared so, or
  // twice. Returns the checksum (checksum.h) of its bytes.
  std::string write(const std::string& name, const at::Tensor& tensor);
  // Puts the tensor's bytes from byte `begin` on into `piece`.
  using Fill = std::function<void(uint64_t begin, std::span<std::byte> piece)>;
  // The same for bytes that are asked for piece by piece, in their order.
  std::string write_pieces(const std::string& name, const Fill& fill);
  // Throws Error if a tensor is missing; syncs and closes. Returns the size of the file in bytes.
  uint64_t finish();

 private:
  explicit SafetensorsWriter(OutputFile file) : file_(std::move(file)) {}
  const TensorSpec& find(const std::string& name) const;  // declared and not written yet

  OutputFile file_;
  std::unordered_map<std::string, TensorSpec> tensors_;  // their bytes counted from the file's begin
  std::unordered_set<std::string> written_;
  uint64_t size_ = 0;
};

// A memory-mapped file whose header was checked. The header has at most 100,000,000 bytes of JSON, known
// types, no repeated key, metadata of strings. Shapes do not overflow and fit their offsets; offsets go
// without gap or overlap from 0 to the end of the file. Every Error names the file, and the tensor if it is
// about one.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);

  bool contains(const std::string& name) const { return places_.contains(name); }
  // In the order of the bytes.
  const std::vector<TensorSpec>& tensors() const { return header_.tensors; }
  const TensorSpec& spec(const std::string& name) const;
  const Metadata& metadata() const { return header_.metadata; }
  const std::filesystem::path& path() const { return file_->path(); }
  uint64_t file_size() const { return file_->bytes().size(); }
  // Where the data begin: the bytes of the header and of its length.
  uint64_t header_bytes() const { return header_.bytes; }

  // The tensor's bytes in the mapping.
  std::span<const std::byte> bytes(const std::string& name) const {
    const TensorSpec& tensor = spec(name);
    return file_->bytes().subspan(header_.bytes + tensor.begin, tensor.end - tensor.begin);
  }
  // Where they begin in the file.
  uint64_t offset(const std::string& name) const { return header_.bytes + spec(name).begin; }
  // The tensor on the mapping itself, which lives as long as the tensor does. Read-only: writing to it is a
  // fault. (A file of other makers may hold a tensor at an odd address; that one is a copy.)
  at::Tensor view(const std::string& name) const;

 private:
  std::shared_ptr<const MappedFile> file_;
  Header header_;
  std::unordered_map<std::string, size_t> places_;  // among its tensors
};

}  // namespace pptrain::io
