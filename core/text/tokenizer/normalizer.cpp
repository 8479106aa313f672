#include "core/text/tokenizer/normalizer.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <utility>

#include "core/text/tokenizer/pattern.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::tokenizer {

namespace {

// Steps, as Normalizer::steps_ has them.

// `each(out, c)` appends what becomes of a character.
template <typename Each>
auto per_character(Each each) {
  return [each](std::string_view text, std::string& out) {
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point(text, at);
      each(out, c.value);
      at += c.size;
    }
    return true;
  };
}

// SentencePiece's "nmt" rule: controls go, other blanks become spaces.
void append_nmt(std::string& out, uint32_t c) {
  struct Characters {
    uint32_t first, last;
  };
  constexpr std::array controls =
      std::to_array<Characters>({{1, 8}, {0xb, 0xb}, {0xe, 0x1f}, {0x7f, 0x7f}, {0x8f, 0x8f}, {0x9f, 0x9f}});
  constexpr std::array blanks = std::to_array<Characters>({{9, 0xa},
                                                           {0xc, 0xd},
                                                           {0x1680, 0x1680},
                                                           {0x200b, 0x200f},
                                                           {0x2028, 0x2029},
                                                           {0x2581, 0x2581},
                                                           {0xfeff, 0xfeff},
                                                           {0xfffd, 0xfffd}});
  const auto holds = [c](const Characters& range) { return c >= range.first && c <= range.last; };
  if (std::ranges::any_of(controls, holds)) return;
  append_utf8(out, std::ranges::any_of(blanks, holds) ? ' ' : c);
}

auto strip(bool left, bool right) {
  return [=](std::string_view text, std::string& out) {
    const size_t begin = left ? blanks_end(text, 0) : 0;
    const size_t end = right ? std::max(begin, blanks_begin(text, text.size())) : text.size();
    if (end - begin == text.size()) return false;
    out += text.substr(begin, end - begin);
    return true;
  };
}

auto prepend(const std::string& prefix) {
  return [prefix](std::string_view text, std::string& out) {
    if (text.empty()) return false;
    out += prefix;
    out += text;
    return true;
  };
}

auto replace(const Pattern& pattern, const std::string& content) {
  return [=](std::string_view text, std::string& out) { return pattern.replace(text, content, out); };
}

}  // namespace

Normalizer::Normalizer(const JsonPart& part) {
  add(part);
}

void Normalizer::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"type", "normalizers"});
    for (const JsonPart& each : part.at("normalizers").elements()) add(each);
    return;
  }
  constexpr std::array<std::pair<const char*, NormalForm>, 4> forms{{{"NFC", NormalForm::nfc},
                                                                     {"NFD", NormalForm::nfd},
                                                                     {"NFKC", NormalForm::nfkc},
                                                                     {"NFKD", NormalForm::nfkd}}};
  for (const auto& [name, form] : forms) {
    if (type != name) continue;
    part.only({"type"});
    steps_.push_back([form = form](std::string_view text, std::string& out) {
      return append_normal_form(out, text, form);
    });
    return;
  }
  if (type == "Lowercase") {
    part.only({"type"});
    steps_.push_back(per_character(append_lower));
    return;
  }
  keeps_begin_ = false;
  if (type == "Nmt") {
    part.only({"type"});
    steps_.push_back(per_character(append_nmt));
  } else if (type == "StripAccents") {
    part.only({"type"});
    steps_.push_back(per_character([](std::string& out, uint32_t c) {
      if (!is_mark(c)) append_utf8(out, c);
    }));
  } else if (type == "Strip") {
    part.only({"type", "strip_left", "strip_right"});
    steps_.push_back(strip(part.flag("strip_left"), part.flag("strip_right")));
  } else if (type == "Replace") {
    part.only({"type", "pattern", "content"});
    steps_.push_back(replace(read_pattern(part.at("pattern")), part.text("content")));
  } else if (type == "Prepend") {
    part.only({"type", "prepend"});
    steps_.push_back(prepend(part.text("prepend")));
  } else {
    part.refuse(fmt::format("the normalizer '{}' is not supported", type));
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string (&buffers)[2]) const {
  size_t next = 0;
  for (const auto& step : steps_) {
    buffers[next].clear();
    if (!step(text, buffers[next])) continue;
    text = buffers[next];
    next = 1 - next;
  }
  return text;
}

std::string Normalizer::apply(std::string_view text) const {
  std::string buffers[2];
  return std::string(apply(text, buffers));
}

}  // namespace pptrain::tokenizer
