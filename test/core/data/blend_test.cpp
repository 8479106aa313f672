#include "core/data/sampler.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/data_loader.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

// Megatron-LM's build_blending_indices, word for word (megatron/core/datasets/helpers.cpp).
std::vector<size_t> megatron(const std::vector<double>& weights, int64_t size) {
  std::vector<int64_t> current_samples(weights.size(), 0);
  std::vector<size_t> order;
  for (int64_t sample_idx = 0; sample_idx < size; ++sample_idx) {
    const auto sample_idx_double = std::max(static_cast<double>(sample_idx), 1.0);
    size_t max_error_index = 0;
    double max_error = weights[0] * sample_idx_double - static_cast<double>(current_samples[0]);
    for (size_t i = 1; i < weights.size(); ++i) {
      const double error = weights[i] * sample_idx_double - static_cast<double>(current_samples[i]);
      if (error > max_error) {
        max_error = error;
        max_error_index = i;
      }
    }
    order.push_back(max_error_index);
    ++current_samples[max_error_index];
  }
  return order;
}

}  // namespace

TEST_CASE(
    "the order is Megatron's of a period, again and again, and says how many of its source came before") {
  // Fractions that doubles hold exactly, so that the reference rounds nothing.
  for (const std::vector<double>& weights : {std::vector<double>{1},
                                             {0.5, 0.5},
                                             {0.75, 0.25},
                                             {0.125, 0.5, 0.375},
                                             {0.0625, 0.9375},
                                             {0.3125, 0.25, 0.4375}}) {
    const Blend blend(weights);
    std::vector<int64_t> counts(weights.size(), 0);
    const std::vector<size_t> expected = megatron(weights, blend.period());
    for (int64_t n = 0; n < 1000; ++n) {
      const Sample sample = blend(n);
      REQUIRE(sample.stream == expected[static_cast<size_t>(n % blend.period())]);
      REQUIRE(sample.index == counts[sample.stream]);
      REQUIRE(blend.taken(n) == counts);
      ++counts[sample.stream];
    }
  }
}

TEST_CASE("shares are exact in every period, and no source is a sample behind") {
  const Blend tenths(std::vector<double>{0.7, 0.2, 0.1});
  CHECK(tenths.period() == 10);
  CHECK(tenths.taken(10) == std::vector<int64_t>{7, 2, 1});
  CHECK(Blend(std::vector<double>{3, 1}).period() == 4);
  CHECK(Blend(std::vector<double>{6, 6, 6}).period() == 3);
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(0.01, 1);
  for (int trial = 0; trial < 5; ++trial) {
    std::vector<double> weights;
    for (int i = 0; i <= trial * 3; ++i) weights.push_back(uniform(random));
    double sum = 0;
    for (const double weight : weights) sum += weight;
    const Blend blend(weights);
    const std::vector<int64_t> shares = blend.taken(blend.period());
    std::vector<int64_t> counts(weights.size(), 0);
    for (int64_t n = 0; n < 2 * blend.period(); ++n) {
      ++counts[blend(n).stream];
      for (size_t i = 0; i < counts.size(); ++i) {
        const double due = static_cast<double>((n + 1) * shares[i]) / static_cast<double>(blend.period());
        REQUIRE(static_cast<double>(counts[i]) - due < 1 + 1e-9);
      }
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      CHECK(counts[i] == 2 * shares[i]);
      CHECK(std::abs(static_cast<double>(shares[i]) / static_cast<double>(blend.period()) -
                     weights[i] / sum) <= 1.0 / Blend::max_period);
    }
  }
}

TEST_CASE("what is no blend") {
  CHECK_THROWS_WITH(Blend(std::vector<double>{1, 1e-6}), contains_text("at least 1 / 65536"));
  CHECK_THROWS_AS(Blend(std::vector<double>{1, 0}), UsageError);
  CHECK_THROWS_AS(Blend(std::vector<double>{}), Error);
  CHECK_THROWS_AS(Blend(std::vector<double>{1})(-1), Error);
}

namespace {

// Two streams with ids source * 1000 + place, and document_end 0 after each 5th.
struct Streams {
  ScratchFolder folder;
  std::vector<WeightedStream> list;

  Streams() {
    for (const int source : {1, 2}) {
      std::vector<uint16_t> ids;
      for (int i = 0; i < 60 * source; ++i)
        ids.push_back(static_cast<uint16_t>(i % 5 == 4 ? 0 : source * 1000 + i));
      const auto file = write_ids(folder, std::to_string(source) + ".bin", ids);
      list.push_back({TokenDataset({{file}, Format::bin, 2}, 65536), source == 1 ? 3.0 : 1.0});
    }
  }
};

std::vector<int64_t> tokens_of(const Step& step) {
  std::vector<int64_t> ids;
  for (const Microbatch& microbatch : step.microbatches) {
    const auto* data = microbatch.tokens.data_ptr<int64_t>();
    ids.insert(ids.end(), data, data + microbatch.tokens.numel());
  }
  return ids;
}

}  // namespace

TEST_CASE_METHOD(Streams, "each source has epochs of its own, in rows and in documents") {
  for (const Packing packing : {Packing::sequential, Packing::best_fit}) {
    LoaderOptions options{.seq_len = 5, .micro_batch_size = 1, .microbatches = 1};
    options.document_end = 0;
    options.packing = packing;
    const DataLoader loader(list, options, true, 7);
    std::vector<std::multiset<int64_t>> firsts(3);
    int64_t next = 0;
    while (next < 44) {  // 33 samples of the first source: 3 epochs of 11 rows, or 2.75 of 12 documents
      const Step step = loader.step(next);
      REQUIRE(step.samples == 1);
      for (const int64_t id : tokens_of(step)) firsts.at(static_cast<size_t>(id / 1000)).insert(id);
      next += step.samples;
      const Step again = DataLoader(list, options, true, 7).step(next);  // a resume needs no more than `next`
      CHECK(tokens_of(again) == tokens_of(loader.step(next)));
    }
    CHECK(firsts[1].size() == 33 * 4);
    CHECK(firsts[2].size() == 11 * 4);
    const double samples = packing == Packing::sequential ? 11 : 12;
    CHECK(loader.epochs(44)[0] == 33 / samples);
    const auto [least, most] =
        std::minmax({firsts[1].count(1000), firsts[1].count(1001), firsts[1].count(1050)});
    CHECK(least >= 2);
    CHECK(most <= 3);
    CHECK(firsts[2].count(2000) <= 1);
  }
}

TEST_CASE_METHOD(Streams, "ranks that share out a blend's rows see those of one rank") {
  LoaderOptions options{.seq_len = 4, .micro_batch_size = 4, .microbatches = 3};
  const std::vector<int64_t> whole = tokens_of(DataLoader(list, options, true, 1).step(5));
  options.micro_batch_size = 2;
  options.dp_size = 2;
  std::vector<std::vector<int64_t>> halves;
  for (const int rank : {0, 1}) {
    options.dp_rank = rank;
    halves.push_back(tokens_of(DataLoader(list, options, true, 1).step(5)));
  }
  std::vector<int64_t> joined;
  for (size_t microbatch = 0; microbatch < 3; ++microbatch) {
    for (const auto& half : halves)
      joined.insert(joined.end(), half.begin() + static_cast<std::ptrdiff_t>(8 * microbatch),
                    half.begin() + static_cast<std::ptrdiff_t>(8 * (microbatch + 1)));
  }
  CHECK(joined == whole);
}

TEST_CASE("streams of one length are shuffled differently") {
  const ScratchFolder folder;
  std::vector<WeightedStream> streams;
  for (const int source : {0, 1}) {
    std::vector<uint16_t> ids;
    for (int i = 0; i < 41; ++i) ids.push_back(static_cast<uint16_t>(1000 * source + i));
    const auto path = write_ids(folder, std::to_string(source) + ".bin", ids);
    streams.push_back({TokenDataset({{path}, Format::bin, 2}, 2000), 1});
  }
  const std::vector<int64_t> ids =
      tokens_of(DataLoader(streams, {.seq_len = 4, .micro_batch_size = 20}, true, 7).step(0));
  std::vector<std::vector<int64_t>> rows(2);
  for (size_t i = 0; i < ids.size(); i += 4)
    rows.at(static_cast<size_t>(ids[i] / 1000)).push_back(ids[i] % 1000 / 4);
  CHECK(rows[0] == std::vector<int64_t>{2, 7, 8, 5, 4, 6, 3, 1, 9, 0});
  CHECK(rows[1] == std::vector<int64_t>{4, 8, 1, 6, 3, 5, 0, 9, 2, 7});
}
