#include "parallel/pipeline/split_layers.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/base/error.h"

namespace pptrain::pipeline {
namespace {

std::string count(int64_t n, const std::string& what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

void check_sizes(int layers, int stages) {
  if (stages < 1) throw UsageError("a pipeline needs at least 1 stage, not " + std::to_string(stages));
  if (layers < stages) {
    throw UsageError(count(layers, "layer") + " cannot fill " + count(stages, "stage") +
                     ": every stage needs a layer. Use at most " + count(std::max(layers, 0), "stage") + ".");
  }
}

std::string join(std::span<const int64_t> values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

}  // namespace

LayerAssignment from_counts(std::span<const int64_t> layers_per_stage) {
  LayerAssignment result;
  int start = 0;
  for (const int64_t n : layers_per_stage) {
    const int end = start + static_cast<int>(n);
    result.emplace_back(start, end);
    start = end;
  }
  return result;
}

std::vector<int64_t> layers_per_stage(const LayerAssignment& assignment) {
  std::vector<int64_t> counts;
  for (const auto& [begin, end] : assignment) counts.push_back(end - begin);
  return counts;
}

LayerAssignment compute_layer_assignment(int layers, int stages, double embedding_weight,
                                         double head_weight) {
  for (const double weight : {embedding_weight, head_weight}) {
    if (!std::isfinite(weight) || weight < 0) {
      throw UsageError("the weights of embedding and head are numbers of layers, 0 or more, not " +
                       std::to_string(weight));
    }
  }
  check_sizes(layers, stages);
  std::vector<double> load(static_cast<size_t>(stages), 0.0);
  load.front() += embedding_weight;
  load.back() += head_weight;
  const std::vector<double> fixed = load;
  std::vector<int64_t> counts(static_cast<size_t>(stages), 0);
  for (int layer = 0; layer < layers; ++layer) {
    const auto least = std::min_element(load.begin(), load.end()) - load.begin();
    load[least] = fixed[least] + static_cast<double>(++counts[least]);
  }
  const auto empty = std::find(counts.begin(), counts.end(), 0);
  if (empty != counts.end()) {
    throw UsageError(count(layers, "layer") + " over " + count(stages, "stage") +
                     " with the embedding counted as " + std::to_string(embedding_weight) +
                     " and the head as " + std::to_string(head_weight) + " layers would leave stage " +
                     std::to_string(empty - counts.begin()) +
                     " without a layer. Use fewer stages or smaller weights, or list the layers per stage.");
  }
  return from_counts(counts);
}

LayerAssignment compute_pinned_layer_assignment(int layers, int stages, int first, int last) {
  check_sizes(layers, stages);
  const int between = layers - first - last;
  const bool fits = stages == 1   ? first == layers && last == layers
                    : stages == 2 ? between == 0
                                  : between >= stages - 2;
  if (first < 1 || last < 1 || !fits) {
    throw UsageError(count(first, "layer") + " on the first and " + count(last, "layer") +
                     " on the last of " + count(stages, "stage") + " cannot hold " + count(layers, "layer") +
                     ": the stages between need at least one each, and none may be left over.");
  }
  std::vector<int64_t> counts(static_cast<size_t>(stages), 0);
  if (stages > 2) {
    for (int i = 1; i < stages - 1; ++i) {
      counts[i] = between / (stages - 2) + (i <= between % (stages - 2) ? 1 : 0);
    }
  }
  counts.front() = first;
  counts.back() = last;
  return from_counts(counts);
}

LayerAssignment explicit_layer_assignment(int layers, int stages, std::span<const int64_t> layers_per_stage) {
  const std::string list = "layers per stage " + join(layers_per_stage);
  if (static_cast<int64_t>(layers_per_stage.size()) != stages) {
    throw UsageError(list + ": " + count(static_cast<int64_t>(layers_per_stage.size()), "number") + " for " +
                     count(stages, "stage") + "; give one per stage.");
  }
  int64_t sum = 0;
  for (const int64_t n : layers_per_stage) {
    if (n < 1 || n > layers) {
      throw UsageError(list + ": every stage holds from 1 to all " + count(layers, "layer") + ", not " +
                       std::to_string(n) + ".");
    }
    sum += n;
  }
  if (sum != layers) {
    throw UsageError(list + ": these are " + count(sum, "layer") + ", but the model has " +
                     std::to_string(layers) + ".");
  }
  return from_counts(layers_per_stage);
}

}  // namespace pptrain::pipeline
