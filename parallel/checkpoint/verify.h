// What makes a checkpoint sound: its files are as the manifest says, and the slices of each tensor are the
// whole tensor, once. Used by Reader, save() and verify().
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/io/files.h"
#include "core/io/safetensors.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::checkpoint {

// Maps one file of the checkpoint. Throws Error unless its size is the manifest's and its header is sound.
io::SafetensorsReader open_file(const std::filesystem::path& step_dir, const FileEntry& entry);

// Differences between the file's header and the manifest, in words: tensors missing, unknown, of another type
// or stored shape.
std::vector<std::string> compare(const io::SafetensorsReader& file, const FileEntry& entry);

// Takes a tensor's bytes from byte `begin` on.
using Take = std::function<void(uint64_t begin, std::span<const std::byte> piece)>;

// Reads the bytes [begin, end) of a tensor of `file` through `input`, which is the same file, and hands them
// to `take`, piece by piece. Returns their checksum.
std::string stream_bytes(const io::RegularFile& input, const io::SafetensorsReader& file,
                         const std::string& tensor, uint64_t begin, uint64_t end, const Take& take);

// The exception for a tensor whose checksum is not the manifest's: names tensor and file.
Unusable damaged(const io::SafetensorsReader& file, const std::string& tensor);

// For each tensor that is not stored whole and once, the first problem, in words that name the tensor, the
// elements and the files: elements stored twice or nowhere, slices of different types or global shapes.
// Sorted by file kind and name. The slices lie within their tensors (read_manifest).
std::vector<std::string> coverage_problems(const std::vector<FileEntry>& files);

}  // namespace pptrain::checkpoint
