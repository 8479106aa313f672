// Reading a checkpoint's files against its manifest; shared by Reader and verify.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::checkpoint {

// Maps one file of the checkpoint. Throws Error unless its size is the manifest's and its header is sound.
io::SafetensorsReader open_file(const std::filesystem::path& step_dir, const FileEntry& entry);

// Differences between the file's header and the manifest, in words: tensors missing, unknown, of another type
// or stored shape.
std::vector<std::string> compare(const io::SafetensorsReader& file, const FileEntry& entry);

// Reads every byte of the tensor. Throws Error that names tensor and file if its checksum is not the
// manifest's.
void check_bytes(const io::SafetensorsReader& file, const std::string& tensor, const TensorEntry& entry);

}  // namespace pptrain::checkpoint
