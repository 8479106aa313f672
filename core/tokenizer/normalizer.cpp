#include "core/tokenizer/normalizer.h"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <utility>

#include "core/tokenizer/pattern.h"
#include "core/tokenizer/unicode.h"

namespace pptrain::tokenizer {

// One step. Immutable.
class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  // Appends to `out`; returns false, and appends nothing, where the text stays as it is. Valid UTF-8 stays
  // so.
  virtual bool apply(std::string_view text, std::string& out) const = 0;
};

namespace {

class Form : public NormalizerStep {
 public:
  explicit Form(NormalForm form) : form_(form) {}
  bool apply(std::string_view text, std::string& out) const override {
    return append_normal_form(out, text, form_);
  }

 private:
  NormalForm form_;
};

// `each(out, c)` appends what becomes of a character.
template <typename Each>
class PerCharacter : public NormalizerStep {
 public:
  explicit PerCharacter(Each each) : each_(each) {}
  bool apply(std::string_view text, std::string& out) const override {
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = code_point(text, at);
      each_(out, c.value);
      at += c.size;
    }
    return true;
  }

 private:
  Each each_;
};

// SentencePiece's "nmt" rule: controls go, other blanks become spaces.
void append_nmt(std::string& out, uint32_t c) {
  const auto within = [c](uint32_t first, uint32_t last) { return c >= first && c <= last; };
  if (within(1, 8) || c == 0xb || within(0xe, 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f) return;
  const bool blank = c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || within(0x200b, 0x200f) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
  append_utf8(out, blank ? ' ' : c);
}

class Strip : public NormalizerStep {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  bool apply(std::string_view text, std::string& out) const override {
    size_t begin = 0, end = text.size();
    while (left_ && begin < end) {
      const CodePoint c = code_point(text, begin);
      if (!is_white_space(c.value)) break;
      begin += c.size;
    }
    while (right_ && begin < end) {
      const size_t last = previous_code_point(text, end);
      if (!is_white_space(code_point(text, last).value)) break;
      end = last;
    }
    if (end - begin == text.size()) return false;
    out += text.substr(begin, end - begin);
    return true;
  }

 private:
  bool left_, right_;
};

class Replace : public NormalizerStep {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  bool apply(std::string_view text, std::string& out) const override {
    if (text.empty()) return false;
    size_t copied = 0;
    bool changed = false;
    pattern_.each_match(text, has_newer_character(text), [&](TextRange match) {
      out += text.substr(copied, match.begin - copied);
      out += content_;
      copied = match.end;
      changed = true;
    });
    if (changed) out += text.substr(copied);
    return changed;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend : public NormalizerStep {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  bool apply(std::string_view text, std::string& out) const override {
    if (text.empty()) return false;
    out += prefix_;
    out += text;
    return true;
  }

 private:
  std::string prefix_;
};

template <typename Each>
std::shared_ptr<const NormalizerStep> per_character(Each each) {
  return std::make_shared<const PerCharacter<Each>>(each);
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
    steps_.push_back(std::make_shared<const Form>(form));
    return;
  }
  if (type == "Lowercase") {
    part.only({"type"});
    steps_.push_back(per_character([](std::string& out, uint32_t c) { append_lower(out, c); }));
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
    steps_.push_back(std::make_shared<const Strip>(part.flag("strip_left"), part.flag("strip_right")));
  } else if (type == "Replace") {
    part.only({"type", "pattern", "content"});
    steps_.push_back(std::make_shared<const Replace>(read_pattern(part.at("pattern")), part.text("content")));
  } else if (type == "Prepend") {
    part.only({"type", "prepend"});
    steps_.push_back(std::make_shared<const Prepend>(part.text("prepend")));
  } else {
    part.refuse(fmt::format("the normalizer '{}' is not supported", type));
  }
}

std::string_view Normalizer::apply(std::string_view text, std::string (&buffers)[2]) const {
  size_t next = 0;
  for (const auto& step : steps_) {
    buffers[next].clear();
    if (!step->apply(text, buffers[next])) continue;
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
