#include "core/nn/rope.h"

#include <cmath>
#include <vector>

#include "core/base/error.h"
#include "test/core/kernels/compare.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;

namespace {

using enum config::RopeType;

double angle(const kernels::RopeTable& table, int64_t position, int64_t i) {
  return std::atan2(table.sin[position][i].item<double>(), table.cos[position][i].item<double>());
}

}  // namespace

TEST_CASE("rotary tables hold cos and sin of position * theta^(-2i / head_dim)", "[nn]") {
  const kernels::RopeTable table = nn::make_rope_table({.dim = 8}, 100, at::kCPU);
  REQUIRE(table.cos.sizes() == at::IntArrayRef({100, 4}));
  for (const int64_t position : {0, 1, 7, 99}) {
    for (int64_t i = 0; i < 4; ++i) {
      const double expected =
          static_cast<double>(position) * std::pow(10000.0, -2.0 * static_cast<double>(i) / 8);
      CHECK(largest(table.cos[position][i] - std::cos(expected)) < 2e-5);
      CHECK(largest(table.sin[position][i] - std::sin(expected)) < 2e-5);
    }
  }
  CHECK_THROWS_AS(nn::make_rope_table({.dim = 7}, 100, at::kCPU), Error);
}

TEST_CASE("linear scaling divides positions", "[nn]") {
  const kernels::RopeTable plain = nn::make_rope_table({.dim = 16, .theta = 5000}, 100, at::kCPU);
  const kernels::RopeTable scaled = nn::make_rope_table(
      {.dim = 16, .theta = 5000, .scaling = {.rope_type = linear, .factor = 4}}, 100, at::kCPU);
  CHECK(largest(scaled.cos[80] - plain.cos[20]) < 1e-5);
  CHECK(largest(scaled.sin[80] - plain.sin[20]) < 1e-5);
}

TEST_CASE("llama3 scaling keeps short wavelengths, stretches long ones, interpolates between", "[nn]") {
  const int64_t head_dim = 16;
  const kernels::RopeTable table = nn::make_rope_table({.dim = head_dim,
                                                        .theta = 100,
                                                        .scaling = {.rope_type = llama3,
                                                                    .factor = 8,
                                                                    .low_freq_factor = 1,
                                                                    .high_freq_factor = 4,
                                                                    .original_max_position_embeddings = 64}},
                                                       4, at::kCPU);
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
    CHECK(Difference(std::abs(angle(table, 1, i) - expected)) < 1e-6);
  }
  CHECK((seen[0] || seen[1]));
  CHECK(seen[2]);
}

namespace {

// Inverse frequencies and the factor of cos and sin, as transformers 5.23 gives them for head_dim 16:
//   config.rope_parameters = {"rope_type": ..., ...}
//   ROPE_INIT_FUNCTIONS[rope_type](config, "cpu", seq_len=positions)
struct Reference {
  nn::RopeConfig config;
  int64_t positions;
  std::vector<float> frequencies;
  double factor = 1;
};

const std::vector<double> short_factors{1, 1.25, 1.5, 1.75, 2, 2.25}, long_factors{1, 4.5, 8, 11.5, 15, 18.5};

const Reference references[] = {
    {{.dim = 16, .max_positions = 100, .scaling = {.rope_type = dynamic, .factor = 2}},
     300,
     {1.F, 0.251273751F, 0.0631385073F, 0.0158650484F, 0.0039864704F, 0.0010016954F, 0.000251699792F,
      6.32455485e-05F}},
    {{.dim = 16, .max_positions = 100, .scaling = {.rope_type = dynamic, .factor = 2}},
     80,
     {1.F, 0.316227764F, 0.100000001F, 0.0316227786F, 0.00999999978F, 0.00316227786F, 0.00100000005F,
      0.000316227786F}},
    {{.dim = 8, .theta = 5000, .scaling = {.rope_type = linear, .factor = 4}},  // partial_rotary_factor 0.5
     100,
     {0.25F, 0.0297301784F, 0.00353553402F, 0.000420448196F}},
    {{.dim = 16, .theta = 500000, .scaling = {.rope_type = llama3, .factor = 8}},  // original: 8192
     100,
     {1.F, 0.193922758F, 0.0376060307F, 0.00729266508F, 0.000524846022F, 3.42810235e-05F, 6.64786967e-06F,
      1.28917316e-06F}},
    {{.dim = 16,
      .theta = 150000,
      .scaling =
          {.rope_type = yarn, .factor = 32, .original_max_position_embeddings = 4096, .truncate = false}},
     100,
     {1.F, 0.225418001F, 0.0508132726F, 0.00679495931F, 0.000456483918F, 1.8188337e-05F, 4.09997847e-06F,
      9.24208962e-07F},
     1.3465735902799727},
    {{.dim = 16,
      .scaling = {.rope_type = yarn,
                  .factor = 40,
                  .original_max_position_embeddings = 4096,
                  .mscale = 0.7,
                  .mscale_all_dim = 1}},
     100,
     {1.F, 0.316227764F, 0.100000001F, 0.0239147246F, 0.00512499968F, 0.000849862176F, 2.49999994e-05F,
      7.90569447e-06F},
     0.91915599520444358},
    {{.dim = 16, .theta = 1e6, .scaling = {.rope_type = yarn, .factor = 4}},  // original: 8192
     100,
     {1.F, 0.177827939F, 0.0316227786F, 0.00421755994F, 0.000500000024F, 4.44569851e-05F, 7.90569356e-06F,
      1.40585337e-06F},
     1.1386294361119891},
    {{.dim = 12,
      .scaling = {.rope_type = longrope,
                  .factor = 4,
                  .original_max_position_embeddings = 64,
                  .short_factor = short_factors,
                  .long_factor = long_factors}},
     64,
     {1.F, 0.172354758F, 0.0309439208F, 0.00571428565F, 0.00107721717F, 0.000206292883F},
     1.1547005383792517},
    {{.dim = 12,
      .scaling = {.rope_type = longrope,
                  .factor = 4,
                  .original_max_position_embeddings = 64,
                  .short_factor = short_factors,
                  .long_factor = long_factors}},
     65,
     {1.F, 0.0478763208F, 0.00580198551F, 0.000869565236F, 0.00014362896F, 2.50896737e-05F},
     1.1547005383792517},
};

}  // namespace

TEST_CASE("every scaling has the frequencies and the factor of transformers", "[nn]") {
  for (const Reference& reference : references) {
    CAPTURE(reference.config.scaling.rope_type.text, reference.positions);
    const kernels::RopeTable table = nn::make_rope_table(reference.config, reference.positions, at::kCPU);
    const at::Tensor angles =
        at::outer(at::arange(reference.positions, at::kFloat), at::tensor(reference.frequencies));
    // A frequency off by its last bit turns the last positions by 2e-5 at most.
    CHECK(largest(table.cos - angles.cos() * reference.factor) < 3e-5);
    CHECK(largest(table.sin - angles.sin() * reference.factor) < 3e-5);
    CHECK(largest(table.sin[1] - angles[1].sin() * reference.factor) < 2e-7);
    CHECK(largest(table.sin[1] / (angles[1].sin() * reference.factor) - 1) < 2e-7);
  }
}

TEST_CASE("a scaling that lacks a number is refused", "[nn]") {
  const auto fails = [](const nn::RopeConfig& config, const char* text) {
    CHECK_THROWS_WITH(nn::make_rope_table(config, 10, at::kCPU), contains_text(text));
  };
  fails({.dim = 8, .scaling = {.rope_type = dynamic, .factor = 2}}, "needs max_position_embeddings");
  fails({.dim = 8, .scaling = {.rope_type = longrope}}, "a short and a long factor");
}

namespace {

// Frequencies that depend on a text's length.
const nn::RopeConfig by_length[] = {
    {.dim = 12,
     .scaling = {.rope_type = longrope,
                 .factor = 4,
                 .original_max_position_embeddings = 64,
                 .short_factor = short_factors,
                 .long_factor = long_factors}},
    {.dim = 12, .max_positions = 64, .scaling = {.rope_type = dynamic, .factor = 3}}};

// cos and sin of each token, as norm_rope reads them. positions: the positions of the list's tokens.
at::Tensor angles_of(const nn::Rotation& rotation, const at::Tensor& positions) {
  const at::Tensor rows = (rotation.rows.defined() ? rotation.rows : positions).to(at::kLong);
  return test::cat({rotation.table.cos.index_select(0, rows), rotation.table.sin.index_select(0, rows)}, 1);
}

at::Tensor positions_of(const std::vector<nn::TextPiece>& pieces) {
  std::vector<at::Tensor> positions;
  for (const nn::TextPiece& piece : pieces)
    positions.push_back(at::arange(piece.first, piece.end(), at::kInt));
  return test::cat(positions);
}

}  // namespace

TEST_CASE("every text has the angles that it would have alone, whatever else is in its list", "[nn]") {
  const nn::RopeConfig& config = by_length[GENERATE(0, 1)];
  const int64_t positions = GENERATE(20, 70, 200);  // initial size of the tables
  const std::vector<std::vector<nn::TextPiece>> lists = {
      {{.length = 30, .first = 0, .tokens = 30}, {.length = 64, .first = 0, .tokens = 64}},    // all short
      {{.length = 80, .first = 0, .tokens = 80}, {.length = 80, .first = 0, .tokens = 80}},    // equally long
      {{.length = 5, .first = 0, .tokens = 5}, {.length = 65, .first = 0, .tokens = 65}},      // both
      {{.length = 90, .first = 0, .tokens = 90}, {.length = 130, .first = 0, .tokens = 130}},  // long ones
      {{.length = 20, .first = 0, .tokens = 50}, {.length = 100, .first = 0, .tokens = 100}},  // with padding
      {{.length = 90, .first = 40, .tokens = 10}, {.length = 60, .first = 50, .tokens = 10}},  // slices
      {{.length = 64, .first = 63, .tokens = 1}},  // a growing text
      {{.length = 65, .first = 64, .tokens = 1}},
      {{.length = 66, .first = 65, .tokens = 1}, {.length = 9, .first = 8, .tokens = 1}}};
  nn::Rope rope(config, positions, at::kCPU);
  for (const auto& list : lists) {
    CAPTURE(positions, list.front().length, list.front().tokens);
    const at::Tensor ours = angles_of(rope.turn(list), positions_of(list));
    std::vector<at::Tensor> alone;
    for (const nn::TextPiece& piece : list) {
      const auto length = std::max(piece.length, piece.end());
      // The table also covers the padding behind the text; no text reads that part.
      const kernels::RopeTable table = nn::make_rope_table(config, piece.length, 0, length, at::kCPU);
      alone.push_back(test::cat({table.cos, table.sin}, 1).narrow(0, piece.first, piece.tokens));
    }
    CHECK((ours - test::cat(alone)).abs().max().item<double>() < 1e-6);
  }
}

TEST_CASE("lists of texts with equal frequencies take positions as rows, of tables that are kept", "[nn]") {
  nn::Rope rope(by_length[0], 50, at::kCPU);
  const auto turn = [&](int64_t a, int64_t b) {
    const std::vector<nn::TextPiece> list = {{.length = a, .first = 0, .tokens = a},
                                             {.length = b, .first = 0, .tokens = b}};
    return rope.turn(list);
  };
  const nn::Rotation first = turn(10, 40);
  CHECK_FALSE(first.rows.defined());
  CHECK(first.table.cos.size(0) == 50);
  CHECK(turn(64, 1).table.cos.size(0) == 64);
  CHECK(turn(10, 40).table.cos.data_ptr() == turn(64, 1).table.cos.data_ptr());
  CHECK(turn(70, 65).table.cos.size(0) == 128);
  CHECK(turn(70, 10).rows.size(0) == 80);
}
