#include "core/nn/rope.h"

#include <cmath>

#include "core/base/error.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

double angle(const kernels::RopeTable& table, int64_t position, int64_t i) {
  return std::atan2(table.sin[position][i].item<double>(), table.cos[position][i].item<double>());
}

}  // namespace

TEST_CASE("rotary tables hold cos and sin of position * theta^(-2i / head_dim)", "[nn]") {
  const kernels::RopeTable table = nn::make_rope_table(8, 100, 10000, {}, at::kCPU);
  REQUIRE(table.cos.sizes() == at::IntArrayRef({100, 4}));
  for (const int64_t position : {0, 1, 7, 99}) {
    for (int64_t i = 0; i < 4; ++i) {
      const double expected =
          static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
      CHECK(std::abs(table.cos[position][i].item<double>() - std::cos(expected)) < 2e-5);
      CHECK(std::abs(table.sin[position][i].item<double>() - std::sin(expected)) < 2e-5);
    }
  }
  CHECK_THROWS_AS(nn::make_rope_table(7, 100, 10000, {}, at::kCPU), Error);
}

TEST_CASE("linear scaling divides positions", "[nn]") {
  const kernels::RopeTable plain = nn::make_rope_table(16, 100, 5000, {}, at::kCPU);
  const kernels::RopeTable scaled =
      nn::make_rope_table(16, 100, 5000, {.rope_type = config::RopeType::linear, .factor = 4}, at::kCPU);
  CHECK((scaled.cos[80] - plain.cos[20]).abs().max().item<double>() < 1e-5);
  CHECK((scaled.sin[80] - plain.sin[20]).abs().max().item<double>() < 1e-5);
}

TEST_CASE("llama3 scaling keeps short wavelengths, stretches long ones, interpolates between", "[nn]") {
  const config::RopeScaling scaling{.rope_type = config::RopeType::llama3,
                                    .factor = 8,
                                    .low_freq_factor = 1,
                                    .high_freq_factor = 4,
                                    .original_max_position_embeddings = 64};
  const int64_t head_dim = 16;
  const kernels::RopeTable table = nn::make_rope_table(head_dim, 4, 100, scaling, at::kCPU);
  bool seen[3] = {};
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const double freq = std::pow(100.0, -2.0 * static_cast<double>(i) / head_dim);
    const double wavelength = 2 * M_PI / freq;
    double expected = freq;
    if (wavelength > 64.0) {
      expected = freq / 8;
      seen[0] = true;
    } else if (wavelength >= 16.0) {
      const double smooth = (64 / wavelength - 1) / 3;
      expected = (1 - smooth) * freq / 8 + smooth * freq;
      seen[1] = true;
    } else {
      seen[2] = true;
    }
    CHECK(std::abs(angle(table, 1, i) - expected) < 1e-6);
  }
  CHECK((seen[0] || seen[1]));
  CHECK(seen[2]);
}
