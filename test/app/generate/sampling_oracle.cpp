// Filtered probabilities, for generate_test.py. Each line of standard input is a case: {"logits": [...],
// "previous": [...], "temperature": ..., "top_k": ..., "top_p": ..., "min_p": ..., "repetition_penalty":
// ...}. The answer is a line with the probabilities of all tokens.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/generate/sampling.h"

int main() {
  using namespace pptrain;
  for (std::string line; std::getline(std::cin, line);) {
    const auto input = nlohmann::json::parse(line);
    const auto logits = input.at("logits").get<std::vector<float>>();
    const auto previous = input.at("previous").get<std::vector<int64_t>>();
    const app::Sampling sampling{.repetition_penalty = input.at("repetition_penalty"),
                                 .temperature = input.at("temperature"),
                                 .top_k = input.at("top_k"),
                                 .top_p = input.at("top_p"),
                                 .min_p = input.at("min_p")};
    std::vector<double> probabilities(logits.size());
    for (const app::TokenProbability& candidate : app::filter(sampling, logits, previous))
      probabilities[static_cast<size_t>(candidate.token)] = candidate.probability;
    std::cout << nlohmann::json(probabilities).dump() << '\n';
  }
}
