// Layout strings: see layout_layer_assignment.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "parallel/pipeline/split_layers.h"

namespace pptrain::pipeline {
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
