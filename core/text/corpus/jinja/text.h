// Text that knows the origin of each byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::jinja {

using Origin = int32_t;
constexpr Origin from_template = -1;

// Valid UTF-8, and for each byte its origin: the template, or what the caller gave it (from 0 on).
class Text {
 public:
  Text() = default;
  explicit Text(std::string bytes, Origin origin = from_template) : bytes_(std::move(bytes)) {
    origins_.assign(bytes_.size(), origin);
  }

  std::string_view bytes() const { return bytes_; }
  Origin origin(size_t at) const { return origins_[at]; }
  bool empty() const { return bytes_.empty(); }
  size_t size() const { return bytes_.size(); }  // bytes

  Text slice(size_t begin, size_t end) const;  // bytes
  Text& operator+=(const Text& more);
  void append(std::string_view bytes, Origin origin);

 private:
  std::string bytes_;
  std::vector<Origin> origins_;
};

// What Python's str methods of these names do; `what`: characters to strip, "": white space.
std::string_view strip(std::string_view text, std::string_view what, bool left, bool right);
Text strip(const Text& text, std::string_view what, bool left, bool right);
Text replace(const Text& text, std::string_view from, const Text& to, int64_t most);
// `separator` "": at white space, without empty parts. most: splits, from the left; < 0: all.
std::vector<Text> split(const Text& text, std::string_view separator, int64_t most);
// Throws Error for letters outside of ASCII, whose case depends on the language's tables.
Text upper(const Text& text);
Text lower(const Text& text);

int64_t length_of(std::string_view text);                  // characters
size_t byte_of(std::string_view text, int64_t character);  // its first byte; the size if there are fewer

}  // namespace pptrain::jinja
