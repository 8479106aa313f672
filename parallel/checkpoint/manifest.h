// The manifest of a checkpoint: what its files must hold, byte for byte.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::checkpoint {

inline constexpr const char* manifest_name = "manifest.json";

// What one file holds of one tensor: all of it or a slice.
struct TensorEntry {
  std::string dtype;  // as safetensors names it
  nn::SliceShape slice;
  std::string checksum;  // XXH3-128 of the stored bytes

  // Its shape in the file: the box's shape if the slice is a whole box, else [elements].
  std::vector<int64_t> stored_shape() const;
};

struct FileEntry {
  int stage = 0;
  std::string file;  // "model"
  int part = 0;      // 0 to parts - 1
  int parts = 1;
  uint64_t bytes = 0;  // of the whole file
  std::map<std::string, TensorEntry> tensors;

  // "stage_0/model.safetensors", "stage_0/model.00001-of-00004.safetensors", below the checkpoint's folder.
  std::filesystem::path path() const;
};

// A file without tensors that is part of the checkpoint.
struct Attachment {
  std::string path;  // below the checkpoint's folder: "hf/files/config.json"
  uint64_t bytes = 0;
  std::string checksum;  // XXH3-128
};

struct Manifest {
  RunState state;
  Layout layout;
  std::string job_toml;
  std::vector<FileEntry> files;
  std::vector<Attachment> attachments = {};
  std::string given_toml = {};  // the keys of the job that were given, if the writing run recorded them

  // There is no optimizer state.
  bool weights_alone() const;
};

// Text that parse_files and read_manifest give back. A manifest carries a checksum of itself.
std::string to_text(const Manifest& manifest);
std::string to_text(const std::vector<FileEntry>& files);
std::vector<FileEntry> parse_files(const std::string& text);

// Reads format 2, and format 1, which is format 2 without slices, parts and attachments. Each slice lies
// within its tensor; coverage_problems (verify.h) tells whether a tensor's slices are all of it. Throws Error
// that names the file and what is wrong with it.
Manifest read_manifest(const std::filesystem::path& step_dir);

// The same from the manifest's text; messages begin with `what`.
Manifest parse_manifest(std::string_view text, const std::string& what);

// Reads a whole attachment. Throws Error that names it if it is missing or not what the manifest says.
void check_attachment(const std::filesystem::path& step_dir, const Attachment& entry);

// Throws Error unless "model", "adamw.exp_avg", ... and the part serve as a file's name.
void check_file_name(const FileEntry& entry);

// "F32 [3, 5]".
std::string describe(const std::string& dtype, const std::vector<int64_t>& shape);

}  // namespace pptrain::checkpoint
