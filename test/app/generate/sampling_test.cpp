// Sampling: the tokens that filters keep, and the random numbers that choose. generate_test.py compares with
// transformers.
#include "app/generate/sampling.h"

#include <cmath>
#include <limits>
#include <map>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain;
using app::Sampling;
using app::TokenProbability;

namespace {

const std::vector<float> logits{1.0F, 3.0F, -2.0F, 3.0F, 0.5F, 2.0F};

std::vector<int64_t> kept(const Sampling& sampling, const std::vector<int64_t>& previous = {}) {
  std::vector<int64_t> tokens;
  for (const TokenProbability& candidate : app::filter(sampling, logits, previous))
    tokens.push_back(candidate.token);
  return tokens;
}

}  // namespace

TEST_CASE("filters keep what they say", "[sampling]") {
  CHECK(kept({}) == std::vector<int64_t>{0, 1, 2, 3, 4, 5});
  CHECK(kept({.top_k = 1}) == std::vector<int64_t>{1, 3});  // a tie stays
  CHECK(kept({.top_k = 3}) == std::vector<int64_t>{1, 3, 5});
  CHECK(kept({.top_k = 60}).size() == 6);
  CHECK(kept({.top_p = 1e-9}) == std::vector<int64_t>{1});
  CHECK(kept({.top_p = 0.75}) == std::vector<int64_t>{1, 3});
  CHECK(kept({.top_p = 0.9}) == std::vector<int64_t>{1, 3, 5});
  CHECK(kept({.min_p = 1}) == std::vector<int64_t>{1, 3});
  CHECK(kept({.min_p = 0.36}) == std::vector<int64_t>{1, 3, 5});
  CHECK(kept({.temperature = 4, .min_p = 0.36}) == std::vector<int64_t>{0, 1, 3, 4, 5});
  CHECK(kept({.repetition_penalty = 10, .min_p = 0.9}, {1, 1, 1}) == std::vector<int64_t>{3});
}

TEST_CASE("greedy takes the first of the best, and a penalty counts a token once", "[sampling]") {
  const Sampling greedy{.temperature = 0};
  CHECK(app::choose(greedy, logits, {}, 0) == 1);
  const Sampling penalty{.repetition_penalty = 1.4, .temperature = 0};
  CHECK(app::choose(penalty, logits, std::vector<int64_t>{1}, 0) == 3);
  CHECK(app::choose(penalty, logits, std::vector<int64_t>{1, 3, 3, 3}, 0) == 1);  // 3 / 1.4 > 2
}

TEST_CASE("tokens come as often as their probabilities say, whatever the order of asking", "[sampling]") {
  const Sampling sampling{.temperature = 1.5, .top_k = 4, .seed = 7};
  const std::vector<TokenProbability> candidates = app::filter(sampling, logits, {});
  const int draws = 40000;
  std::map<int64_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[app::choose(sampling, logits, {}, static_cast<uint64_t>(i))];
  CHECK(counts.size() == candidates.size());
  for (const TokenProbability& candidate : candidates) {
    const double sigma = std::sqrt(candidate.probability * (1 - candidate.probability) / draws);
    CHECK(std::abs(counts[candidate.token] / static_cast<double>(draws) - candidate.probability) < 5 * sigma);
  }
}

TEST_CASE("seed, sequence and place each change the random number", "[sampling]") {
  const std::vector<float> flat(1 << 20, 0.0F);
  const std::vector<int64_t> one{0}, two{0, 0};
  const Sampling sampling{.seed = 1}, other{.seed = 2};
  const int64_t token = app::choose(sampling, flat, one, 0);
  CHECK(app::choose(sampling, flat, one, 0) == token);
  CHECK(app::choose(sampling, flat, two, 0) != token);
  CHECK(app::choose(sampling, flat, one, 1) != token);
  CHECK(app::choose(other, flat, one, 0) != token);
}

TEST_CASE("what makes no sense is refused", "[sampling]") {
  for (const Sampling& wrong :
       {Sampling{.repetition_penalty = 0}, Sampling{.temperature = -1}, Sampling{.temperature = std::nan("")},
        Sampling{.top_k = -1}, Sampling{.top_p = 0}, Sampling{.top_p = 1.1}, Sampling{.min_p = -0.1}})
    CHECK_THROWS_AS(app::check(wrong), UsageError);
  app::check({.temperature = 0});
  std::vector<float> broken = logits;
  broken[2] = std::nanf("");
  CHECK_THROWS_WITH(app::filter({}, broken, {}), pptrain::test::contains_text("not finite"));
  broken[2] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(app::choose({.temperature = 0}, broken, {}, 0), Error);
}
