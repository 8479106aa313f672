// The parameters of a checkpoint of any layout, as the bytes of Hugging Face's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

class ParameterSource {
 public:
  // Throws Unusable where the checkpoint is.
  explicit ParameterSource(const std::filesystem::path& step_folder) : reader_(step_folder) {}

  const checkpoint::Reader& reader() const { return reader_; }

  // What fills the tensor `spec` of a file with `parameters`, one after the other, rounded to its type. All
  // have the same number of elements; the checkpoint has them. Asked for in order, it reads each once, and
  // holds one at a time. `what` begins its errors. Throws Error where the sizes do not fit.
  io::SafetensorsWriter::Fill fill(const io::TensorSpec& spec, std::vector<std::string> parameters,
                                   std::string what);

 private:
  std::span<const float> values(const std::string& parameter);  // until the next one is asked for

  checkpoint::Reader reader_;
  std::string held_;
  at::Tensor values_;
};

}  // namespace pptrain::app
