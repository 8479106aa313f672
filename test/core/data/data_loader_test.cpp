#include "core/data/data_loader.h"

#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/microbatch.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

constexpr int64_t seq_len = 4;

// Token t has id t, so that a row shows its place in the data.
TokenDataset counting(const ScratchFolder& folder, int64_t tokens) {
  std::vector<uint16_t> ids(static_cast<size_t>(tokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint16_t>(i);
  return TokenDataset({{write_ids(folder, "tokens.bin", ids)}, Format::bin, 2}, 65536);
}

using Rows = std::vector<std::vector<int64_t>>;

// The documents of a microbatch: `list` is its tokens or its labels.
Rows rows(const Microbatch& microbatch, const at::Tensor& list) {
  const auto& starts = microbatch.segments.host_starts;
  REQUIRE(list.sizes() == at::IntArrayRef{starts.back()});
  Rows result;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const auto* first = list.data_ptr<int64_t>();
    result.emplace_back(first + starts[i], first + starts[i + 1]);
  }
  return result;
}
Rows tokens_of(const Microbatch& microbatch) {
  return rows(microbatch, microbatch.tokens);
}
Rows labels_of(const Microbatch& microbatch) {
  return rows(microbatch, microbatch.labels);
}

Rows all_tokens(const std::vector<Microbatch>& microbatches) {
  Rows result;
  for (const Microbatch& microbatch : microbatches) {
    for (auto& row : tokens_of(microbatch)) result.push_back(row);
  }
  return result;
}

}  // namespace

TEST_CASE("unshuffled microbatches, written out") {
  const ScratchFolder folder;
  const DataLoader loader(counting(folder, 17), {.seq_len = 4, .micro_batch_size = 1, .microbatches = 2},
                          false, 0);
  CHECK(loader.samples_per_epoch() == 4);
  const Step taken = loader.step(2);
  const std::vector<Microbatch>& step = taken.microbatches;
  const int64_t targets = taken.targets;
  CHECK(taken.samples == 2);
  CHECK(taken.tokens == 8);
  CHECK(taken.padding == 0);
  REQUIRE(step.size() == 2);
  CHECK(tokens_of(step[0]) == Rows{{8, 9, 10, 11}});
  CHECK(labels_of(step[0]) == Rows{{9, 10, 11, 12}});
  CHECK(tokens_of(step[1]) == Rows{{12, 13, 14, 15}});
  CHECK(labels_of(step[1]) == Rows{{13, 14, 15, 16}});
  CHECK(step[1].targets == 4);
  CHECK(targets == 8);
  // The epoch wraps inside a step.
  CHECK(all_tokens(loader.step(3).microbatches) == Rows{{12, 13, 14, 15}, {0, 1, 2, 3}});
}

TEST_CASE("the rows of a microbatch are one list of equal documents") {
  const ScratchFolder folder;
  const DataLoader loader(counting(folder, 50), {.seq_len = 3, .micro_batch_size = 4, .microbatches = 2},
                          true, 1);
  for (const Microbatch& microbatch : loader.step(0).microbatches) {
    CHECK(microbatch.tokens.sizes() == at::IntArrayRef{12});
    CHECK(microbatch.labels.sizes() == at::IntArrayRef{12});
    CHECK(microbatch.segments.host_starts == std::vector<int32_t>{0, 3, 6, 9, 12});
    CHECK(microbatch.segments.longest == 3);
    CHECK(microbatch.segments.starts.equal(at::tensor({0, 3, 6, 9, 12}, at::kInt)));
    CHECK(microbatch.positions.scalar_type() == at::kInt);
    CHECK(microbatch.positions.equal(at::tensor({0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}, at::kInt)));
  }
}

TEST_CASE("a rank reads what its stages need") {
  const ScratchFolder folder;
  const auto dataset = counting(folder, 100);
  for (const bool tokens : {false, true}) {
    for (const bool labels : {false, true}) {
      const DataLoader loader(dataset, {.seq_len = 4, .need_tokens = tokens, .need_labels = labels}, true, 0);
      const Step step = loader.step(0);
      const Microbatch& microbatch = step.microbatches.at(0);
      CHECK(microbatch.tokens.defined() == tokens);
      CHECK(microbatch.labels.defined() == labels);
      CHECK(microbatch.positions.sizes() == at::IntArrayRef{4});
      CHECK(microbatch.segments.tokens() == 4);
      CHECK(microbatch.targets == 4);
      CHECK(step.targets == 4);
    }
  }
}

TEST_CASE("labels are the tokens one further on") {
  const ScratchFolder folder;
  const DataLoader loader(counting(folder, 1000), {.seq_len = 7, .micro_batch_size = 3, .microbatches = 5},
                          true, 11);
  for (const Microbatch& microbatch : loader.step(45).microbatches) {
    auto expected = tokens_of(microbatch);
    for (auto& row : expected) {
      for (int64_t& id : row) ++id;
    }
    CHECK(labels_of(microbatch) == expected);
  }
}

TEST_CASE("data ranks together see the rows of one rank with as many rows more") {
  const ScratchFolder folder;
  const auto dataset = counting(folder, 3001);
  for (const int64_t dp : {2, 3, 4}) {
    constexpr int64_t b = 2, m = 3;
    const DataLoader whole(dataset, {.seq_len = seq_len, .micro_batch_size = dp * b, .microbatches = m}, true,
                           3);
    for (int64_t next = 0; next < 500; next += dp * b * m) {
      const Step expected = whole.step(next);
      REQUIRE(expected.samples == dp * b * m);
      for (int64_t j = 0; j < m; ++j) {
        Rows together;
        for (int64_t d = 0; d < dp; ++d) {
          const DataLoader share(
              dataset,
              {.seq_len = seq_len, .micro_batch_size = b, .microbatches = m, .dp_size = dp, .dp_rank = d},
              true, 3);
          const Step step = share.step(next);
          REQUIRE(step.samples == expected.samples);
          REQUIRE(step.targets == expected.targets);
          for (auto& row : tokens_of(step.microbatches[j])) together.push_back(row);
        }
        REQUIRE(together == tokens_of(expected.microbatches[j]));
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
    for (auto& row : all_tokens(loader.step(step * 6).microbatches)) uninterrupted.push_back(row);
  }
  for (const int64_t stop : {6, 96, 102, 150}) {
    const DataLoader resumed(dataset, {.seq_len = seq_len, .micro_batch_size = 1, .microbatches = 6}, true,
                             8);
    Rows rest(uninterrupted.begin(), uninterrupted.begin() + stop);
    for (int64_t next = stop; next < 300; next += 6) {
      for (auto& row : all_tokens(resumed.step(next).microbatches)) rest.push_back(row);
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
    int64_t told = 0;
    for (int64_t d = 0; d < 2; ++d) {
      const ValidationLoader loader(
          dataset, {.seq_len = 3, .micro_batch_size = 2, .microbatches = 2, .dp_size = 2, .dp_rank = d}, 0);
      for (int64_t i = 0; i < loader.batches(); ++i) {
        for (const Microbatch& microbatch : loader.batch(i)) {
          const auto inputs = tokens_of(microbatch);
          const auto labels = labels_of(microbatch);
          REQUIRE(microbatch.segments.host_starts == std::vector<int32_t>{0, 3, 6});  // padding rows too
          REQUIRE(microbatch.targets == microbatch.labels.ne(ignore_label).sum().item<int64_t>());
          told += microbatch.targets;
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
    REQUIRE(told == tokens - 1);
  }
}

TEST_CASE("a rank without labels knows how many of them count") {
  const ScratchFolder folder;
  const auto dataset =
      counting(folder, 21);  // rows of 6: three whole, one with 2 valid tokens, the rest padding
  std::vector<int64_t> targets;
  for (const bool labels : {true, false}) {
    const ValidationLoader loader(dataset,
                                  {.seq_len = 6,
                                   .micro_batch_size = 1,
                                   .microbatches = 3,
                                   .dp_size = 2,
                                   .dp_rank = 1,
                                   .need_labels = labels},
                                  0);
    for (const Microbatch& microbatch : loader.batch(0)) {
      targets.push_back(microbatch.targets);
      const int64_t filling = microbatch.filling.defined() ? microbatch.filling.sum().item<int64_t>() : 0;
      CHECK(filling == 6 - microbatch.targets);
    }
  }
  CHECK(targets == std::vector<int64_t>{6, 2, 0, 6, 2, 0});
}

TEST_CASE("validation stops after the batches asked for") {
  const ScratchFolder folder;
  const auto dataset = counting(folder, 101);
  const LoaderOptions options{.seq_len = 5, .micro_batch_size = 2, .microbatches = 2};
  CHECK(ValidationLoader(dataset, options, 0).batches() == 5);
  CHECK(ValidationLoader(dataset, options, 2).batches() == 2);
  CHECK(ValidationLoader(dataset, options, 9).batches() == 5);
  const ValidationLoader two(dataset, options, 2);
  CHECK(all_tokens(two.batch(1))[0] == std::vector<int64_t>{20, 21, 22, 23, 24});
  CHECK_THROWS_AS(two.batch(2), Error);
}

namespace {

// Joins the lists of context-parallel ranks, with each token at its place in the whole list.
Microbatch joined(const std::vector<Microbatch>& parts) {
  Microbatch whole = parts[0];
  whole.tokens = at::full({parts[0].segments.tokens()}, -1, at::kLong);
  whole.labels = whole.tokens.clone();
  whole.positions = whole.tokens.to(at::kInt);
  for (const Microbatch& part : parts) {
    int64_t local = 0;
    for (const auto& range : part.context->own()) {
      const auto put = [&](const at::Tensor& to, const at::Tensor& from) {
        to.narrow(0, range.begin, range.length()).copy_(from.narrow(0, local, range.length()));
      };
      put(whole.tokens, part.tokens);
      put(whole.labels, part.labels);
      put(whole.positions, part.positions);
      local += range.length();
    }
    REQUIRE(local == part.token_count());
    REQUIRE(part.tokens.numel() == local);
  }
  return whole;
}

void check_parts(const std::vector<std::vector<Microbatch>>& by_rank, const std::vector<Microbatch>& whole) {
  for (size_t j = 0; j < whole.size(); ++j) {
    std::vector<Microbatch> parts;
    for (const auto& microbatches : by_rank) {
      REQUIRE(microbatches.size() == whole.size());
      const Microbatch& part = parts.emplace_back(microbatches[j]);
      CHECK(part.targets == whole[j].targets);
      CHECK(part.global_targets == whole[j].global_targets);
      CHECK(part.global_tokens == whole[j].global_tokens);
      CHECK(part.segments.host_starts == whole[j].segments.host_starts);
      const Microbatch cut = part_of(whole[j], part.context);
      CHECK(at::equal(cut.tokens, part.tokens));
      CHECK(at::equal(cut.labels, part.labels));
      CHECK(at::equal(cut.positions, part.positions));
    }
    const Microbatch together = joined(parts);
    CHECK(at::equal(together.tokens, whole[j].tokens));
    CHECK(at::equal(together.labels, whole[j].labels));
    CHECK(at::equal(together.positions, whole[j].positions));
  }
}

}  // namespace

TEST_CASE("context-parallel ranks share out each row, with the labels and positions of the whole") {
  const ScratchFolder folder;
  const TokenDataset dataset = counting(folder, 82);  // the last row of its validation is short
  const auto order = GENERATE(tokens::ContextOrder::zigzag, tokens::ContextOrder::contiguous);
  const int ranks = GENERATE(2, 3);
  LoaderOptions options{.seq_len = 12, .micro_batch_size = 2, .microbatches = 2, .dp_size = 2, .dp_rank = 1};
  const DataLoader alone(dataset, options, true, 3);
  const ValidationLoader all(dataset, options, 0);
  std::vector<std::vector<Microbatch>> steps, batches;
  options.cp_size = ranks;
  options.cp_order = order;
  for (options.cp_rank = 0; options.cp_rank < ranks; ++options.cp_rank) {
    const DataLoader loader(dataset, options, true, 3);
    CHECK(loader.step(1).samples == alone.step(1).samples);
    CHECK(loader.step(1).targets == alone.step(1).targets);
    steps.push_back(loader.step(1).microbatches);
    const ValidationLoader validation(dataset, options, 0);
    CHECK(validation.batches() == all.batches());
    batches.push_back(validation.batch(0));
  }
  check_parts(steps, alone.step(1).microbatches);
  check_parts(batches, all.batch(0));
}

TEST_CASE("pieces of a zigzag, written out") {
  const ScratchFolder folder;
  const DataLoader loader(counting(folder, 17), {.seq_len = 8, .cp_size = 2, .cp_rank = 0}, false, 0);
  const Microbatch microbatch = loader.step(1).microbatches.at(0);
  CHECK(at::equal(microbatch.tokens, at::tensor({8, 9, 14, 15}, at::kLong)));
  CHECK(at::equal(microbatch.labels, at::tensor({9, 10, 15, 16}, at::kLong)));
  CHECK(at::equal(microbatch.positions, at::tensor({0, 1, 6, 7}, at::kInt)));
  CHECK(microbatch.targets == 8);
  CHECK(microbatch.global_tokens == 8);
  CHECK_THROWS_AS(DataLoader(counting(folder, 17), {.seq_len = 6, .cp_size = 2}, false, 0), Error);
  CHECK_THROWS_AS(DataLoader(counting(folder, 17), {.seq_len = 8, .cp_size = 2, .cp_rank = 2}, false, 0),
                  Error);
  CHECK_THROWS_AS(part_of(microbatch, microbatch.context), Error);  // it is a slice already
}

TEST_CASE("rows are cut into documents behind the token that ends them") {
  const ScratchFolder folder;
  const std::vector<uint16_t> ids = {5, 9, 1, 2, 3, 4, 6, 9, 9, 7, 8, 9, 1};
  const TokenDataset dataset({{write_ids(folder, "tokens.bin", ids)}, Format::bin, 2}, 16);
  const LoaderOptions options{.seq_len = seq_len, .micro_batch_size = 3, .document_end = 9};
  const Step step = DataLoader(dataset, options, /*shuffle=*/false, 0).step(0);
  const Microbatch& all = step.microbatches.at(0);
  CHECK(tokens_of(all) == Rows{{5, 9}, {1, 2}, {3, 4, 6, 9}, {9}, {7, 8, 9}});
  // The label at a document's end is ignored, in the row and at the row's end.
  const int64_t none = ignore_label;
  CHECK(labels_of(all) == Rows{{9, none}, {2, 3}, {4, 6, 9, none}, {none}, {8, 9, none}});
  CHECK(at::equal(all.positions, at::tensor({0, 1, 0, 1, 0, 1, 2, 3, 0, 0, 1, 2}, at::kInt)));
  CHECK(all.targets == 8);
  CHECK(all.global_targets == 8);
  CHECK(step.targets == 8);
  CHECK(all.segments.longest == 4);

  // Data ranks know each other's valid tokens; context ranks have the documents of the whole list.
  LoaderOptions shared{
      .seq_len = seq_len, .dp_size = 3, .dp_rank = 1, .cp_size = 2, .cp_rank = 1, .document_end = 9};
  shared.cp_order = tokens::ContextOrder::contiguous;
  const Step part = DataLoader(dataset, shared, false, 0).step(0);
  const Microbatch& own = part.microbatches.at(0);
  CHECK(at::equal(own.tokens, at::tensor({6, 9}, at::kLong)));
  CHECK(at::equal(own.positions, at::tensor({2, 3}, at::kInt)));
  CHECK(own.segments.host_starts == std::vector<int32_t>{0, 4});
  CHECK(own.targets == 3);
  CHECK(own.global_targets == 8);
  CHECK(part.targets == 8);
}
