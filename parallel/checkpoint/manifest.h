// The manifest of a checkpoint: what a sound one holds, byte for byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::checkpoint {

inline constexpr const char* manifest_name = "manifest.json";

struct TensorEntry {
  std::string dtype;  // as safetensors names it
  std::vector<int64_t> shape;
  std::string checksum;  // XXH3-128 of the tensor's bytes
};

struct FileEntry {
  int stage = 0;
  std::string file;    // "model"
  uint64_t bytes = 0;  // of the whole file
  std::map<std::string, TensorEntry> tensors;

  // "stage_0/model.safetensors", below the checkpoint's folder.
  std::filesystem::path path() const;
};

struct Manifest {
  RunState state;
  Layout layout;
  std::string job_toml;
  std::vector<FileEntry> files;
};

// Text that parse_* gives back. A manifest carries a checksum of itself.
std::string to_text(const Manifest& manifest);
std::string to_text(const std::vector<FileEntry>& files);
std::vector<FileEntry> parse_files(const std::string& text);

// Throws Error that names the file and what is wrong with it.
Manifest read_manifest(const std::filesystem::path& step_dir);

// Throws Error that names the tensor and both stages if one file kind has a tensor twice.
void check_names_differ(const std::vector<FileEntry>& files);

// "model", "adamw.exp_avg": throws Error unless it serves as a file's name.
void check_file_name(const std::string& name);

}  // namespace pptrain::checkpoint
