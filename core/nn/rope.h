// Rotary position embedding (Su et al., arXiv 2104.09864), with its frequency scalings.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <span>

#include "core/config/job_config.h"
#include "core/kernels/kernels.h"
#include "core/nn/token_info.h"

namespace pptrain::nn {

// Scalings: linear divides positions. Dynamic (NTK) raises the base for sequences beyond max_positions.
// "llama3" (Llama 3.1) and yarn (arXiv 2309.00071) stretch long wavelengths. "longrope" (arXiv 2402.13753)
// has a factor for each frequency, [dim / 2], up to the original positions and beyond.
struct RopeConfig {
  int64_t dim = 0;  // of a head's dims that are rotated, the first ones: even
  double theta = 10000;
  int64_t max_positions = 0;  // of dynamic scaling: max_position_embeddings
  config::RopeScaling scaling = {};
};

// Rows of positions [first, end) of a text of `length` tokens, computed in float32 as transformers does for a
// forward pass over all of it. On `device`. Throws Error for what does not fit.
kernels::RopeTable make_rope_table(const RopeConfig& config, int64_t length, int64_t first, int64_t end,
                                   at::Device device);
// All rows of a text.
inline kernels::RopeTable make_rope_table(const RopeConfig& config, int64_t length, at::Device device) {
  return make_rope_table(config, length, 0, length, device);
}

// Tokens of one text that follow each other in a list.
struct TextPiece {
  int64_t length = 0;  // tokens of the whole text at hand
  int64_t first = 0;   // position of the piece's first token
  int64_t tokens = 0;

  int64_t end() const { return first + tokens; }
};

// Rotates lists of texts, each by the frequencies that it would have alone: with dynamic and longrope they
// follow from its length.
class Rope {
 public:
  // Makes the table of a text of `positions` tokens, and others, or more rows, once a list needs them. Throws
  // Error for what does not fit.
  Rope(const RopeConfig& config, int64_t positions, at::Device device);

  // pieces: the list's, in order. If all have the same frequencies, rows are positions.
  Rotation turn(std::span<const TextPiece> pieces);

 private:
  Rotation turn_each(std::span<const TextPiece> pieces, int64_t end);
  bool keeps(int64_t length) const;
  const kernels::RopeTable& table(int64_t length, int64_t end);

  RopeConfig config_;
  int64_t positions_;
  at::Device device_;
  std::map<int64_t, kernels::RopeTable> tables_;  // by deciding_length()
};

}  // namespace pptrain::nn
