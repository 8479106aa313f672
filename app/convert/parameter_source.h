// The parameters of a checkpoint of any layout, as the bytes of Hugging Face's tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "models/weight_map.h"
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

  // What fills the tensor `spec` of a file with its parts, ascending and together all of it, rounded to its
  // type. Asked for in order, it reads each once, and holds one at a time; all of a tensor whose parts
  // interleave. `what` begins its errors. Throws Error where the checkpoint's sizes do not fit.
  io::SafetensorsWriter::Fill fill(const io::TensorSpec& spec, std::vector<models::HfWeight> parts,
                                   std::string what);

 private:
  // Elements [begin, end) of a tensor, which these parts fill.
  struct Range {
    uint64_t begin = 0, end = 0;
    std::vector<models::HfWeight> parts;
  };
  static std::vector<Range> ranges(std::vector<models::HfWeight> parts, uint64_t elements);
  void read(const models::HfWeight& part);
  std::span<const float> values(const Range& range);  // until the next one is asked for

  checkpoint::Reader reader_;
  std::string held_;
  at::Tensor values_;
};

}  // namespace pptrain::app
