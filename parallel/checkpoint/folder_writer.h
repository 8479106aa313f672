// A checkpoint of weights alone, written by one process tensor by tensor, without a world of ranks.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::checkpoint {

// Writes a step folder that Reader opens. The caller owns the folder and makes it appear whole
// (core/io/atomic_file.h): it is a checkpoint once finish() has written the manifest.
class FolderWriter {
 public:
  // `folder` exists and is empty. `parameters`: all parameters of the model, whole, by their global names.
  // Throws Error if a file cannot be written.
  FolderWriter(std::filesystem::path folder, const std::vector<io::TensorSpec>& parameters);

  // Writes one parameter, in any order; `fill` gives its bytes piece by piece.
  void write(const std::string& parameter, const io::SafetensorsWriter::Fill& fill);
  // Takes a file that the caller has written and synced at `path`, relative to the folder, into the manifest.
  void attach(const std::string& path);
  // Throws Error if a parameter is missing. All files are synced afterwards; the folders are not.
  void finish(const RunState& state, const Layout& layout, const std::string& job_toml);

 private:
  std::filesystem::path folder_;
  Manifest manifest_;
  io::SafetensorsWriter file_;
};

}  // namespace pptrain::checkpoint
