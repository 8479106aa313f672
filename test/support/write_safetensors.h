// Writes a safetensors file at once.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/io/safetensors.h"

namespace pptrain::test {

inline void write_safetensors(const std::filesystem::path& path,
                              const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                              const io::Metadata& metadata = {}) {
  std::vector<io::TensorSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  io::SafetensorsWriter writer(path, specs, metadata);
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.finish();
}

}  // namespace pptrain::test
