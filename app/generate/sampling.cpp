#include "app/generate/sampling.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/kernels/normal_value.h"

namespace pptrain::app {

namespace {

struct Scored {
  int64_t token = 0;
  float score = 0;
};

bool is_better(const Scored& a, const Scored& b) {
  return a.score != b.score ? a.score > b.score : a.token < b.token;
}

// Each token of the sequence counts once, however often it occurs.
std::vector<Scored> penalised(const Sampling& sampling, std::span<const float> logits,
                              std::span<const int64_t> previous) {
  std::vector<Scored> scores(logits.size());
  float best = -std::numeric_limits<float>::infinity();
  bool sound = true;
  for (size_t i = 0; i < logits.size(); ++i) {
    scores[i] = {static_cast<int64_t>(i), logits[i]};
    best = std::max(best, logits[i]);
    sound &= !std::isnan(logits[i]);
  }
  if (!sound || !std::isfinite(best))
    throw Error("the model's logits are not finite: are its weights sound?");
  if (sampling.repetition_penalty == 1) return scores;
  const auto penalty = static_cast<float>(sampling.repetition_penalty);
  for (const int64_t token : previous) {
    const auto i = static_cast<size_t>(token);
    scores[i].score = logits[i] < 0 ? logits[i] * penalty : logits[i] / penalty;
  }
  return scores;
}

void keep_top_k(std::vector<Scored>& scores, int64_t k) {
  if (k <= 0 || k >= static_cast<int64_t>(scores.size())) return;
  std::vector<Scored> order = scores;
  std::ranges::nth_element(order, order.begin() + (k - 1), is_better);
  const float least = order[static_cast<size_t>(k - 1)].score;
  std::erase_if(scores, [&](const Scored& s) { return s.score < least; });
}

// exp(score - best) of each.
std::vector<double> terms_of(const std::vector<Scored>& scores) {
  const float best = std::ranges::max_element(scores, {}, &Scored::score)->score;
  std::vector<double> terms;
  terms.reserve(scores.size());
  for (const Scored& s : scores) terms.push_back(std::exp(static_cast<double>(s.score - best)));
  return terms;
}

// Takes the best off a heap until they are enough: usually a few of many.
void keep_top_p(std::vector<Scored>& scores, double p) {
  if (p >= 1) return;
  double total = 0;
  for (const double term : terms_of(scores)) total += term;
  const auto is_worse = [](const Scored& a, const Scored& b) { return is_better(b, a); };
  std::ranges::make_heap(scores, is_worse);
  const float best = scores.front().score;
  double sum = 0;
  auto end = scores.end();
  while (end != scores.begin() && sum < p * total) {
    std::ranges::pop_heap(scores.begin(), end, is_worse);
    sum += std::exp(static_cast<double>((--end)->score - best));
  }
  scores.erase(scores.begin(), end);
  std::ranges::sort(scores, {}, &Scored::token);
}

void keep_min_p(std::vector<Scored>& scores, double p) {
  if (p <= 0) return;
  const float best = std::ranges::max_element(scores, {}, &Scored::score)->score;
  std::erase_if(scores, [&](const Scored& s) { return std::exp(static_cast<double>(s.score - best)) < p; });
}

// In [0, 1), with 53 bits.
double uniform(uint64_t seed, uint64_t sequence, uint64_t place) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  const auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const auto words = kernels::normal_value::philox({{low(place), high(place), low(sequence), high(sequence)}},
                                                   low(seed), high(seed));
  const uint64_t bits = (static_cast<uint64_t>(words.v[1]) << 32) | words.v[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

void check_range(const char* name, double value, bool sound, const char* allowed) {
  if (!sound) throw UsageError(fmt::format("{} {}: allowed is {}", name, value, allowed));
}

}  // namespace

void check(const Sampling& s) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto penalty = static_cast<float>(s.repetition_penalty);  // as it is used
  check_range("--repetition-penalty", s.repetition_penalty, penalty > 0 && std::isfinite(penalty),
              "more than 0");
  check_range("--temperature", s.temperature,
              s.temperature == 0 || (s.temperature >= 1e-6 && s.temperature < infinity),
              "0 (greedy), or 1e-6 and more");
  check_range("--top-k", static_cast<double>(s.top_k), s.top_k >= 0, "0 (all) or more");
  check_range("--top-p", s.top_p, s.top_p > 0 && s.top_p <= 1, "more than 0, up to 1 (all)");
  check_range("--min-p", s.min_p, s.min_p >= 0 && s.min_p <= 1, "from 0 (all) to 1");
}

std::vector<TokenProbability> filter(const Sampling& sampling, std::span<const float> logits,
                                     std::span<const int64_t> previous) {
  std::vector<Scored> scores = penalised(sampling, logits, previous);
  // Differences from the best: no temperature makes them infinite upwards.
  const float best = std::ranges::max_element(scores, {}, &Scored::score)->score;
  const auto temperature = static_cast<float>(sampling.temperature);
  for (Scored& s : scores) s.score = (s.score - best) / temperature;
  keep_top_k(scores, sampling.top_k);
  keep_top_p(scores, sampling.top_p);
  keep_min_p(scores, sampling.min_p);
  const std::vector<double> terms = terms_of(scores);
  double total = 0;
  for (const double term : terms) total += term;
  std::vector<TokenProbability> candidates;
  candidates.reserve(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) candidates.push_back({scores[i].token, terms[i] / total});
  return candidates;
}

int64_t choose(const Sampling& sampling, std::span<const float> logits, std::span<const int64_t> previous,
               uint64_t sequence) {
  if (sampling.temperature == 0) {
    const std::vector<Scored> scores = penalised(sampling, logits, previous);
    return std::ranges::min_element(scores, is_better)->token;
  }
  const std::vector<TokenProbability> candidates = filter(sampling, logits, previous);
  const double u = uniform(sampling.seed, sequence, previous.size());
  double sum = 0;
  for (const TokenProbability& candidate : candidates) {
    sum += candidate.probability;
    if (u < sum) return candidate.token;
  }
  return candidates.back().token;
}

}  // namespace pptrain::app
