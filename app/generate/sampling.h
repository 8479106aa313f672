// From a row of logits to the next token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pptrain::app {

// Changes to the scores of all tokens, in this order, as in transformers' generate; each step sees the result
// of the one before it.
struct Sampling {
  // For tokens of the sequence so far, prompt included (Keskar et al., arXiv 1909.05858): positive scores are
  // divided by it, others multiplied with it. 1: none.
  double repetition_penalty = 1;
  // Divides the scores. 0: the highest score wins, and the options below do nothing.
  double temperature = 1;
  int64_t top_k = 0;  // tokens that score at least as the k-th best; 0: all
  // Keeps the fewest best tokens with at least this total probability (Holtzman et al., arXiv 1904.09751). 1:
  // all.
  double top_p = 1;
  double min_p = 0;  // tokens of at least this fraction of the best one's probability (arXiv 2407.01082)
  uint64_t seed = 0;
};

// Throws UsageError that names the argument: a temperature below 0, a top_p outside (0, 1], ...
void check(const Sampling& sampling);

struct TokenProbability {
  int64_t token = 0;
  double probability = 0;
};

// The remaining tokens, ascending, with their probabilities, whose sum is 1. `previous`: the sequence so far.
// The temperature is not 0. Throws Error if a logit is NaN or the largest is not finite.
std::vector<TokenProbability> filter(const Sampling& sampling, std::span<const float> logits,
                                     std::span<const int64_t> previous);

// Chooses the token at the place previous.size() of sequence number `sequence`: greedily the first with the
// highest score, else by a random number. That is a function of seed, sequence and place alone (Philox4x32,
// as for initial weights), so neither the layout nor other sequences change it.
int64_t choose(const Sampling& sampling, std::span<const float> logits, std::span<const int64_t> previous,
               uint64_t sequence);

}  // namespace pptrain::app
