// The parameters of a checkpoint of any layout, as the bytes of Hugging Face's tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::app {

// --- Elements between a file's type and the float32 of checkpoints, a piece of a tensor at a time.

// Throws Error, which begins with `what` (file and tensor), unless float32 holds every value of the type and
// gives it back: float32, bfloat16, float16.
void check_exact_in_float(at::ScalarType type, const std::string& what);

// `from`: elements of `type`, aligned to it; `to`: as many of float32. Throws Error, which begins with
// `what`, where `from` has a value that to_type would not give back bit for bit: a NaN that carries
// something.
void to_float(at::ScalarType type, std::span<const std::byte> from, std::span<std::byte> to,
              const std::string& what);

// The nearest values of `type`. Throws Error, which begins with `what`, where a finite one becomes infinite.
void to_type(at::ScalarType type, std::span<const float> from, std::span<std::byte> to,
             const std::string& what);

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
