// train.recompute as stages see it: one word for all of them, or one for each.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/config/word.h"
#include "models/model_config.h"

namespace pptrain::app {

// What "auto" means on a device; other words as they are. GPUs are short of memory, not of
// time for what takes no product: of Llama 3 8B a third of the activations for some 1 % of the operations'
// bytes.
std::vector<std::string> resolved_recompute(std::vector<std::string> words, config::Device device);

// Throws UsageError if the words are several with an "auto", whatever the number of stages.
void check_recompute_words(std::span<const std::string> words);

// The same, and if they are neither one nor as many as the stages.
void check_recompute(std::span<const std::string> words, int stages);

models::Recompute stage_recompute(std::span<const std::string> words, int stage);

// Of each stage; empty where one word serves all, as Workload wants it.
std::vector<models::Recompute> recompute_of_stages(std::span<const std::string> words);

// The words for these stages: a single one where all are alike.
std::vector<std::string> recompute_words(std::span<const models::Recompute> stages);

// "full", or in runs of equal stages "2 full, cheap, 5 none".
std::string describe_recompute(std::span<const std::string> words);

}  // namespace pptrain::app
