// train.recompute: what the backward passes of each stage compute again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pptrain::config {

// What a stage does not keep from F to the backward pass, but computes again there, from least to most. The
// bits are the same.
enum class Recompute {
  none,
  cheap,      // what needs no GEMM to recompute: the norms' outputs and the MLP's gate times up
  selective,  // the norms' outputs and the MLP's inner tensors: gate, up and their product
  full,       // all but each block's input
};

inline constexpr std::array all_recomputes = {Recompute::none, Recompute::cheap, Recompute::selective,
                                              Recompute::full};

// Its word in train.recompute.
std::string_view to_string(Recompute level);

// "full:3/cheap:2" as its words and their counts; nothing if it is not of this form.
std::optional<std::vector<std::pair<std::string_view, int>>> parse_runs(std::string_view text);

// One word for all stages, or one for each. A word is a level, or levels of the microbatches one after the
// other, which then repeat: "full:3/cheap:2". Sequence slices count as microbatches.
struct Recomputation {
  std::vector<std::string> words = {"auto"};  // as the loader has checked them

  Recomputation() = default;
  Recomputation(Recompute level);  // NOLINT(google-explicit-constructor): of all stages
  explicit Recomputation(std::span<const Recompute> stages);
  explicit Recomputation(std::span<const std::vector<Recompute>> stages);  // [stage][microbatch]

  bool is_auto() const { return words == std::vector<std::string>{"auto"}; }

  // Throws UsageError if one of several words is "auto".
  void check_words() const;
  // The same, and if there are neither one nor as many words as stages.
  void check(int stages) const;

  // What is for this stage.
  const std::string& word(int stage) const;
  // Levels of a stage: microbatch i has level i % size.
  std::vector<Recompute> levels(int stage) const;
  // The most that one of its microbatches recomputes.
  Recompute most(int stage) const;
  // Has a stage microbatches of several levels?
  bool by_microbatch() const;

  // "full", or in runs of equal stages "2 full, cheap, 5 none"; of a stage with several levels, with so many
  // microbatches a step, each in so many sequence slices: "full (6 of 16 microbatches cheap)".
  std::string describe(int64_t microbatches, int64_t slices) const;

  bool operator==(const Recomputation&) const = default;
};

}  // namespace pptrain::config
