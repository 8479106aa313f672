#include "parallel/pipeline/split_layers.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

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

LayerAssignment explicit_layer_assignment(int layers, int stages, std::span<const int64_t> layers_per_stage) {
  const std::string list = fmt::format("layers per stage [{}]", fmt::join(layers_per_stage, ", "));
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

// Layout strings: see layout_layer_assignment.

namespace {

constexpr int free_share = -1;
constexpr size_t longest = 1 << 16;  // characters and layers of a sensible layout

class LayoutReader {
 public:
  explicit LayoutReader(const std::string& layout) : layout_(layout) {
    for (const char c : layout) {
      if (c != ' ' && c != ',') text_ += c;
    }
  }

  // Layers of each stage; free_share for '*'.
  std::vector<int> read() {
    text_ = expanded();
    std::vector<std::string> cells(1);
    for (const char c : text_) {
      if (c == '|') {
        cells.emplace_back();
      } else {
        cells.back() += c;
      }
    }
    std::vector<int> counts;
    for (size_t i = 0; i < cells.size(); ++i)
      counts.push_back(stage(cells[i], i == 0, i + 1 == cells.size()));
    return counts;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw UsageError("layout \"" + layout_ + "\": " + what +
                     ". A layout is stages apart by |: numbers of layers, or * for an even share of the rest "
                     "(1|*|*|1), or letters as in Megatron (Ett|ttt|ttL)");
  }

  int number(const std::string& text, size_t& at) const {
    int value = 0;
    const size_t start = at;
    for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])) != 0; ++at) {
      value = value * 10 + (text[at] - '0');
      if (value > static_cast<int>(longest)) fail("a number is too large");
    }
    if (at == start) fail("a number is missing");
    return value;
  }

  // (...)*N written out; groups do not nest.
  std::string expanded() const {
    std::string result;
    for (size_t i = 0; i < text_.size();) {
      if (text_[i] != '(') {
        if (text_[i] == ')') fail("a ) without its (");
        result += text_[i++];
        continue;
      }
      const size_t close = text_.find(')', i);
      if (close == std::string::npos || close + 1 >= text_.size() || text_[close + 1] != '*')
        fail("a group is written (...)*N");
      const std::string group = text_.substr(i + 1, close - i - 1);
      if (group.find('(') != std::string::npos) fail("groups cannot lie inside each other");
      i = close + 2;
      for (int repeat = number(text_, i); repeat > 0; --repeat) {
        result += group;
        if (result.size() > longest) fail("it is too long");
      }
    }
    return result;
  }

  int stage(const std::string& cell, bool first, bool last) const {
    if (cell == "*") return free_share;
    size_t at = 0;
    if (!cell.empty() && std::isdigit(static_cast<unsigned char>(cell[0])) != 0) {
      const int count = number(cell, at);
      if (at != cell.size()) fail("\"" + cell + "\" is not a stage");
      return count;
    }
    return letters(cell, first, last);
  }

  int letters(const std::string& cell, bool first, bool last) const {
    int count = 0;
    for (size_t at = 0; at < cell.size();) {
      const char c = cell[at++];
      if (c == 'E') {
        if (!first || at != 1) fail("E, the embedding, comes first");
      } else if (c == 'L') {
        if (!last || at != cell.size()) fail("L, the head, comes last");
      } else if (c == 't') {
        int repeat = 1;
        if (at < cell.size() && cell[at] == '*') repeat = number(cell, ++at);
        count += repeat;
      } else {
        fail("\"" + cell + "\" is not a stage");
      }
    }
    return count;
  }

  const std::string& layout_;
  std::string text_;
};

}  // namespace

LayerAssignment layout_layer_assignment(int layers, int stages, const std::string& layout) {
  std::vector<int> counts = LayoutReader(layout).read();
  const auto free = static_cast<int>(std::ranges::count(counts, free_share));
  int rest = layers;
  for (const int count : counts) rest -= count == free_share ? 0 : count;
  if (free > 0 && rest < free) {
    throw UsageError("layout \"" + layout + "\": the stages with a number leave " +
                     std::to_string(std::max(rest, 0)) + " of " + std::to_string(layers) + " layers for " +
                     std::to_string(free) + " with *, which need one each");
  }
  std::vector<int64_t> result;
  int seen = 0;
  for (const int count : counts) {
    if (count != free_share) {
      result.push_back(count);
    } else {
      result.push_back(rest / free + (seen < rest % free ? 1 : 0));
      ++seen;
    }
  }
  return explicit_layer_assignment(layers, stages, result);
}

}  // namespace pptrain::pipeline
