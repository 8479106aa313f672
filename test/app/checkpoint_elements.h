// The contents of a checkpoint, independent of the layout that wrote it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>

#include "core/io/checksum.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::test {

// "file/tensor" -> checksum of the whole tensor's elements in the run's newest checkpoint.
inline std::map<std::string, std::string> checkpoint_elements(const std::filesystem::path& run_dir) {
  std::string latest;
  std::getline(std::ifstream(run_dir / "checkpoints" / "latest"), latest);
  const checkpoint::Reader reader(run_dir / "checkpoints" / latest);
  std::map<std::string, std::string> elements;
  for (const std::string file : {"model", "adamw.exp_avg", "adamw.exp_avg_sq"}) {
    for (const std::string& name : reader.names(file)) {
      at::Tensor whole = at::empty(reader.global_shape(file, name), at::kFloat);
      reader.read(file, name, whole);
      elements[file + "/" + name] = io::checksum_hex(
          std::as_bytes(std::span(whole.const_data_ptr<float>(), static_cast<size_t>(whole.numel()))));
    }
  }
  return elements;
}

}  // namespace pptrain::test
