// Rotary position embedding (Su et al., arXiv 2104.09864), with its frequency scalings.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/config/word.h"
#include "core/kernels/kernels.h"

namespace pptrain::nn {

// How frequencies are scaled, by the names of Hugging Face's rope_type: linear divides positions; dynamic
// (NTK) raises the base for sequences beyond max_positions; llama3 (Llama 3.1) and yarn (arXiv 2309.00071)
// stretch long wavelengths; longrope (arXiv 2402.13753) has a factor for each frequency.
using config::RopeType;

// Members below `theta` are those of Hugging Face's rope_parameters; each type reads its own alone.
struct RopeConfig {
  int64_t dim = 0;  // of a head that are rotated, the first ones: even
  double theta = 10000;
  RopeType type = RopeType::none;
  std::optional<double>
      factor{};               // linear, dynamic, llama3; yarn, longrope: max / original positions if unset
  int64_t max_positions = 0;  // dynamic, yarn, longrope: max_position_embeddings
  int64_t original_positions = 0;  // llama3, yarn, longrope: original_max_position_embeddings
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  double beta_fast = 32, beta_slow = 1;              // yarn
  double mscale = 0, mscale_all_dim = 0;             // yarn
  bool truncate = true;                              // yarn
  // yarn, longrope: multiplies cos and sin; unset: what the papers recommend
  std::optional<double> attention_factor{};
  std::vector<double> short_factor{}, long_factor{};  // longrope: [dim / 2], up to original_positions, beyond
};

// Tables for positions [0, positions), computed in float32 as Hugging Face does for a sequence of that
// length, on `device`. Throws Error for what is missing or does not fit.
kernels::RopeTable make_rope_table(const RopeConfig& config, int64_t positions, at::Device device);

}  // namespace pptrain::nn
