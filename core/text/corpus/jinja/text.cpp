#include "core/text/corpus/jinja/text.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::jinja {
namespace {

using tokenizer::code_point;

// Does str.strip() take it, or is it one of `what`?
bool goes(std::string_view text, size_t at, std::string_view what) {
  const tokenizer::CodePoint c = code_point(text, at);
  if (what.empty()) return tokenizer::is_white_space(c.value) || (c.value >= 0x1c && c.value <= 0x1f);
  for (size_t i = 0; i < what.size(); i += code_point(what, i).size) {
    if (code_point(what, i).value == c.value) return true;
  }
  return false;
}

template <typename Change>
Text with_letters(const Text& text, const Change& change) {
  Text out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    if ((static_cast<unsigned char>(c) & 0x80) != 0)
      throw Error("upper and lower case are known of ASCII alone");
    out.append(std::string(1, change(c)), text.origin(i));
  }
  return out;
}

}  // namespace

Text Text::slice(size_t begin, size_t end) const {
  Text part;
  part.bytes_ = bytes_.substr(begin, end - begin);
  part.origins_.assign(origins_.begin() + static_cast<ptrdiff_t>(begin),
                       origins_.begin() + static_cast<ptrdiff_t>(end));
  return part;
}

Text& Text::operator+=(const Text& more) {
  bytes_ += more.bytes_;
  origins_.insert(origins_.end(), more.origins_.begin(), more.origins_.end());
  return *this;
}

void Text::append(std::string_view bytes, Origin origin) {
  bytes_ += bytes;
  origins_.resize(bytes_.size(), origin);
}

std::string_view strip(std::string_view bytes, std::string_view what, bool left, bool right) {
  size_t begin = 0, end = bytes.size();
  while (left && begin < end && goes(bytes, begin, what)) begin += code_point(bytes, begin).size;
  while (right && begin < end) {
    const size_t last = tokenizer::previous_code_point(bytes, end);
    if (!goes(bytes, last, what)) break;
    end = last;
  }
  return bytes.substr(begin, end - begin);
}

Text strip(const Text& text, std::string_view what, bool left, bool right) {
  const std::string_view rest = strip(text.bytes(), what, left, right);
  const auto begin = static_cast<size_t>(rest.data() - text.bytes().data());
  return text.slice(begin, begin + rest.size());
}

Text replace(const Text& text, std::string_view from, const Text& to, int64_t most) {
  if (from.empty()) throw Error("replace of an empty text is not supported");
  Text out;
  size_t at = 0;
  for (size_t found = text.bytes().find(from); found != std::string_view::npos && most != 0;
       found = text.bytes().find(from, at), --most) {
    out += text.slice(at, found);
    out += to;
    at = found + from.size();
  }
  out += text.slice(at, text.size());
  return out;
}

std::vector<Text> split(const Text& text, std::string_view separator, int64_t most) {
  const std::string_view bytes = text.bytes();
  std::vector<Text> parts;
  size_t at = 0;
  if (!separator.empty()) {
    for (size_t found = bytes.find(separator); found != std::string_view::npos && most != 0;
         found = bytes.find(separator, at), --most) {
      parts.push_back(text.slice(at, found));
      at = found + separator.size();
    }
    parts.push_back(text.slice(at, text.size()));
    return parts;
  }
  if (most >= 0) throw Error("split(None, N) is not supported");
  while (at < bytes.size()) {
    size_t end = at;
    while (end < bytes.size() && !goes(bytes, end, "")) end += code_point(bytes, end).size;
    if (end > at) parts.push_back(text.slice(at, end));
    at = end < bytes.size() ? end + code_point(bytes, end).size : end;
  }
  return parts;
}

Text upper(const Text& text) {
  return with_letters(text, [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; });
}

Text lower(const Text& text) {
  return with_letters(text, [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
}

int64_t length_of(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

size_t byte_of(std::string_view text, int64_t character) {
  size_t at = 0;
  for (; character > 0 && at < text.size(); --character) at += code_point(text, at).size;
  return std::min(at, text.size());
}

}  // namespace pptrain::jinja
