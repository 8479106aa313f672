#include "core/data/data_loader.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <string>

#include "core/base/error.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

constexpr int64_t seq_len = 4;

// Token t has id t, so that a row shows where it was taken from.
TokenDataset counting(const ScratchFolder& folder, int64_t tokens) {
  std::vector<uint16_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i);
  return TokenDataset({write_ids(folder, "tokens.bin", ids), Format::bin, 2}, 65536);
}

using Rows = std::vector<std::vector<int64_t>>;

Rows rows(const at::Tensor& tensor) {
  Rows result;
  for (int64_t i = 0; i < tensor.size(0); ++i) {
    const auto* row = tensor.data_ptr<int64_t>() + i * tensor.size(1);
    result.emplace_back(row, row + tensor.size(1));
  }
  return result;
}

Rows all_tokens(const std::vector<Microbatch>& step) {
  Rows result;
  for (const Microbatch& microbatch : step) {
    for (auto& row : rows(microbatch.tokens)) result.push_back(row);
  }
  return result;
}

}  // namespace

TEST_CASE("unshuffled microbatches, written out") {
  const ScratchFolder folder;
  const DataLoader loader(counting(folder, 17), {.seq_len = 4, .micro_batch_size = 1, .microbatches = 2},
                          false, 0);
  CHECK(loader.samples_per_epoch() == 4);
  CHECK(loader.samples_per_step() == 2);
  const auto step = loader.step(2);
  REQUIRE(step.size() == 2);
  CHECK(rows(step[0].tokens) == Rows{{8, 9, 10, 11}});
  CHECK(rows(step[0].labels) == Rows{{9, 10, 11, 12}});
  CHECK(rows(step[1].tokens) == Rows{{12, 13, 14, 15}});
  CHECK(rows(step[1].labels) == Rows{{13, 14, 15, 16}});
  CHECK(step[1].batch == 1);
  CHECK(step[1].seq == 4);
  CHECK(step[1].positions.scalar_type() == at::kInt);
  CHECK(step[1].positions.equal(at::tensor(at::ArrayRef<int>{0, 1, 2, 3}, at::kInt).view({1, 4})));
  // The epoch wraps inside a step.
  CHECK(all_tokens(loader.step(3)) == Rows{{12, 13, 14, 15}, {0, 1, 2, 3}});
}

TEST_CASE("a rank reads what its stages need") {
  const ScratchFolder folder;
  const auto dataset = counting(folder, 100);
  for (const bool tokens : {false, true}) {
    for (const bool labels : {false, true}) {
      const DataLoader loader(dataset, {.seq_len = 4, .need_tokens = tokens, .need_labels = labels}, true, 0);
      const auto step = loader.step(0);
      CHECK(step[0].tokens.defined() == tokens);
      CHECK(step[0].labels.defined() == labels);
      CHECK(step[0].positions.sizes() == at::IntArrayRef{1, 4});
      CHECK(step[0].seq == 4);
    }
  }
}

TEST_CASE("labels are the tokens one further on") {
  const ScratchFolder folder;
  const DataLoader loader(counting(folder, 1000), {.seq_len = 7, .micro_batch_size = 3, .microbatches = 5},
                          true, 11);
  for (const Microbatch& microbatch : loader.step(45)) {
    auto expected = rows(microbatch.tokens);
    for (auto& row : expected) {
      for (int64_t& id : row) ++id;
    }
    CHECK(rows(microbatch.labels) == expected);
  }
}

TEST_CASE("data ranks together see the rows of one rank with as many rows more") {
  const ScratchFolder folder;
  const auto dataset = counting(folder, 3001);
  for (const int64_t dp : {2, 3, 4}) {
    constexpr int64_t b = 2, m = 3;
    const DataLoader whole(dataset, {.seq_len = seq_len, .micro_batch_size = dp * b, .microbatches = m}, true,
                           3);
    for (int64_t next = 0; next < 500; next += whole.samples_per_step()) {
      const auto expected = whole.step(next);
      for (int64_t j = 0; j < m; ++j) {
        Rows together;
        for (int64_t d = 0; d < dp; ++d) {
          const DataLoader share(
              dataset,
              {.seq_len = seq_len, .micro_batch_size = b, .microbatches = m, .dp_size = dp, .dp_rank = d},
              true, 3);
          REQUIRE(share.samples_per_step() == whole.samples_per_step());
          for (auto& row : rows(share.step(next)[j].tokens)) together.push_back(row);
        }
        REQUIRE(together == rows(expected[j].tokens));
      }
    }
  }
}

TEST_CASE("a resumed run goes on where it stopped, also with another batch shape") {
  const ScratchFolder folder;
  const auto dataset = counting(folder, 401);  // 100 samples: several epochs
  const DataLoader loader(dataset, {.seq_len = seq_len, .micro_batch_size = 2, .microbatches = 3}, true, 8);
  Rows uninterrupted;
  for (int64_t step = 0; step < 50; ++step) {
    for (auto& row : all_tokens(loader.step(step * 6))) uninterrupted.push_back(row);
  }
  for (const int64_t stop : {6, 96, 102, 150}) {
    const DataLoader resumed(dataset, {.seq_len = seq_len, .micro_batch_size = 1, .microbatches = 6}, true,
                             8);
    Rows rest(uninterrupted.begin(), uninterrupted.begin() + stop);
    for (int64_t next = stop; next < 300; next += 6) {
      for (auto& row : all_tokens(resumed.step(next))) rest.push_back(row);
    }
    CHECK(rest == uninterrupted);
  }
}

TEST_CASE("too little data says how much is needed") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH(DataLoader(counting(folder, 4), {.seq_len = 4}, true, 0),
                    contains_text("4 tokens") && contains_text("needs 5"));
  CHECK_THROWS_WITH(ValidationLoader(counting(folder, 1), {.seq_len = 4}, 0), contains_text("at least 2"));
  CHECK_THROWS_AS(DataLoader(counting(folder, 9), {.seq_len = 4, .dp_size = 2, .dp_rank = 2}, true, 0),
                  Error);
}

TEST_CASE("every validation token is a target exactly once") {
  const ScratchFolder folder;
  for (int64_t tokens = 2; tokens < 60; ++tokens) {
    const auto dataset = counting(folder, tokens);
    std::vector<int> counted(static_cast<size_t>(tokens), 0);
    int64_t valid = 0;
    for (int64_t d = 0; d < 2; ++d) {
      const ValidationLoader loader(
          dataset, {.seq_len = 3, .micro_batch_size = 2, .microbatches = 2, .dp_size = 2, .dp_rank = d}, 0);
      valid = loader.valid_tokens();
      for (int64_t i = 0; i < loader.batches(); ++i) {
        for (const Microbatch& microbatch : loader.batch(i)) {
          const auto inputs = rows(microbatch.tokens);
          const auto labels = rows(microbatch.labels);
          REQUIRE(labels.size() == 2);
          for (size_t r = 0; r < labels.size(); ++r) {
            for (size_t s = 0; s < labels[r].size(); ++s) {
              if (labels[r][s] == ignore_label) {
                REQUIRE(inputs[r][s] == 0);
                continue;
              }
              REQUIRE(inputs[r][s] + 1 == labels[r][s]);
              ++counted[static_cast<size_t>(labels[r][s])];
            }
          }
        }
      }
    }
    std::vector<int> once(static_cast<size_t>(tokens), 1);
    once[0] = 0;
    REQUIRE(counted == once);
    REQUIRE(valid == tokens - 1);
  }
}

TEST_CASE("validation stops after the batches asked for") {
  const ScratchFolder folder;
  const auto dataset = counting(folder, 101);
  const LoaderOptions options{.seq_len = 5, .micro_batch_size = 2, .microbatches = 2};
  CHECK(ValidationLoader(dataset, options, 0).batches() == 5);
  CHECK(ValidationLoader(dataset, options, 2).batches() == 2);
  CHECK(ValidationLoader(dataset, options, 2).valid_tokens() == 40);
  CHECK(ValidationLoader(dataset, options, 9).batches() == 5);
  const ValidationLoader two(dataset, options, 2);
  CHECK(all_tokens(two.batch(1))[0] == std::vector<int64_t>{20, 21, 22, 23, 24});
  CHECK_THROWS_AS(two.batch(2), Error);
}
