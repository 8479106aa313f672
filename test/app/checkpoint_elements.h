// The contents of a checkpoint, independent of the layout that wrote it.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>

#include "core/io/checksum.h"
#include "parallel/checkpoint/checkpoint.h"
#include "test/support/ops.h"

namespace pptrain::test {

// "file/tensor" -> checksum of the whole tensor's elements in the run's newest checkpoint. moments: their
// type.
inline std::map<std::string, std::string> checkpoint_elements(const std::filesystem::path& run_dir,
                                                              at::ScalarType moments = at::kFloat) {
  std::string latest;
  std::getline(std::ifstream(run_dir / "checkpoints" / "latest"), latest);
  const checkpoint::Reader reader(run_dir / "checkpoints" / latest);
  std::map<std::string, std::string> elements;
  for (const std::string file : {"model", "ema", "adamw.exp_avg", "adamw.exp_avg_sq"}) {
    for (const std::string& name : reader.names(file)) {
      at::Tensor whole = at::empty(reader.global_shape(file, name), file[0] == 'a' ? moments : at::kFloat);
      reader.read(file, name, whole);
      elements[file + "/" + name] = io::checksum_hex(
          {static_cast<const std::byte*>(whole.const_data_ptr()), static_cast<size_t>(whole.nbytes())});
    }
  }
  return elements;
}

}  // namespace pptrain::test
