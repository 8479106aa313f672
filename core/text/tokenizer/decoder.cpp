#include "core/text/tokenizer/decoder.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/text/tokenizer/bpe.h"
#include "core/text/tokenizer/pattern.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::tokenizer {

namespace {

using Tokens = std::vector<std::string>;

std::string replaced(const Pattern& pattern, const std::string& content, const std::string& token) {
  std::string out;
  return pattern.replace(token, content, out) ? out : token;
}

// Without up to `start` and `stop` of one character at the ends.
std::string stripped(const std::string& character, int64_t start, int64_t stop, std::string_view token) {
  for (int64_t i = 0; i < start && token.starts_with(character); ++i) token.remove_prefix(character.size());
  for (int64_t i = 0; i < stop && token.ends_with(character); ++i) token.remove_suffix(character.size());
  return std::string(token);
}

// Puts spaces in the place of `mark`; in the first token, if one was prepended, nothing.
void show_spaces(const std::string& mark, bool prepended, Tokens& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::string_view with = i == 0 && prepended ? "" : " ";
    std::string& token = tokens[i];
    for (size_t at = 0; (at = token.find(mark, at)) != std::string::npos; at += with.size())
      token.replace(at, mark.size(), with);
  }
}

std::string joined(const Tokens& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  return all;
}

// Turns a token of characters that stand for bytes into the bytes; another token stays.
std::string as_bytes(const std::string& token) {
  return bytes_of_token(token).value_or(token);
}

std::string repaired(std::string bytes) {
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  append_repaired(text, bytes);
  return text;
}

// The byte of "<0x0A>". (The package's number may have a plus sign.)
std::optional<char> byte_of(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  int value = 0;
  for (size_t i = token[3] == '+' ? 4 : 3; i < 5; ++i) {
    const char c = token[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

// Bytes that follow each other, as text; if that is not UTF-8, a U+FFFD for each of them.
void append_bytes(std::string& text, std::string& bytes) {
  if (valid_utf8_prefix(bytes) == bytes.size()) {
    text += bytes;
  } else {
    for (size_t i = 0; i < bytes.size(); ++i) text += replacement_character;
  }
  bytes.clear();
}

void fall_back(Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (valid_utf8_prefix(bytes) == bytes.size()) {
      out.push_back(bytes);
    } else {
      out.insert(out.end(), bytes.size(), std::string(replacement_character));
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = byte_of(token)) {
      bytes += *byte;
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

}  // namespace

Decoder::Decoder(const JsonPart& part) : none_(false) {
  add(part);
}

void Decoder::add_each_alone(const OfOne& decode, bool between) {
  steps_.push_back({StepKind::each_alone,
                    [decode](Tokens& tokens) { std::ranges::transform(tokens, tokens.begin(), decode); },
                    between ? decode : OfOne()});
}

bool Decoder::joins() const {
  return std::ranges::any_of(
      steps_, [](StepKind kind) { return kind == StepKind::byte_level || kind == StepKind::fuse; },
      &Step::kind);
}

void Decoder::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"type", "decoders"});
    for (const JsonPart& each : part.at("decoders").elements()) add(each);
  } else if (type == "ByteLevel") {
    part.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    steps_.push_back({StepKind::byte_level,
                      [](Tokens& tokens) {
                        std::ranges::transform(tokens, tokens.begin(), as_bytes);
                        tokens.assign(1, repaired(joined(tokens)));
                      },
                      as_bytes});
  } else if (type == "ByteFallback") {
    part.only({"type"});
    steps_.push_back({StepKind::byte_fallback, fall_back, [](const std::string& token) {
                        const std::optional<char> byte = byte_of(token);
                        return byte ? std::string(1, *byte) : token;
                      }});
  } else if (type == "Fuse") {
    part.only({"type"});
    steps_.push_back({StepKind::fuse, [](Tokens& tokens) { tokens.assign(1, joined(tokens)); }});
  } else if (type == "Strip") {
    part.only({"type", "content", "start", "stop"});
    // Behind a join, Strip takes the ends of the whole text.
    add_each_alone([content = part.character("content"), start = part.at("start").integer(0, 1 << 20),
                    stop = part.at("stop").integer(0, 1 << 20)](
                       const std::string& token) { return stripped(content, start, stop, token); },
                   /*between=*/!joins());
  } else if (type == "Replace") {
    part.only({"type", "pattern", "content"});
    add_each_alone([pattern = read_pattern(part.at("pattern")), content = part.text("content")](
                       const std::string& token) { return replaced(pattern, content, token); });
  } else if (type == "Metaspace") {
    part.only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    const auto scheme = part.find("prepend_scheme");
    const bool never = (scheme && scheme->text() == "never") || !part.flag("add_prefix_space", true);
    const std::string mark = part.character("replacement");
    steps_.push_back({never ? StepKind::each_alone : StepKind::other,
                      [never, mark](Tokens& tokens) { show_spaces(mark, !never, tokens); },
                      [mark](const std::string& token) {
                        Tokens one{token};
                        show_spaces(mark, /*prepended=*/false, one);
                        return one.front();
                      }});
  } else {
    part.refuse(fmt::format("the decoder '{}' is not supported", type));
  }
}

void Decoder::set_tokens(const std::unordered_map<int32_t, std::string>& tokens) {
  int32_t largest = -1;
  for (const auto& [id, token] : tokens) largest = std::max(largest, id);
  Tokens texts(static_cast<size_t>(largest) + 1);
  known_.assign(texts.size(), false);
  for (const auto& [id, token] : tokens) {
    texts[static_cast<size_t>(id)] = token;
    known_[static_cast<size_t>(id)] = true;
  }
  count_bytes(texts);
  const auto left = std::ranges::find_if(
      steps_, [](StepKind kind) { return kind != StepKind::each_alone; }, &Step::kind);
  for (auto step = steps_.begin(); step != left; ++step) step->decode(texts);
  steps_.erase(steps_.begin(), left);
  // A last step that joins the texts: each ByteLevel before it makes bytes of single texts.
  if (is(0, StepKind::byte_level) && steps_.size() == 1) {
    std::ranges::transform(texts, texts.begin(), as_bytes);
    steps_.clear();
  }
  if (is(0, StepKind::fuse) && steps_.size() == 1) steps_.clear();
  texts_.clear();
  begins_.assign(1, 0);
  for (const std::string& text : texts) {
    texts_ += text;
    begins_.push_back(static_cast<uint32_t>(texts_.size()));
  }
}

void Decoder::count_bytes(Tokens texts) {
  bytes_.clear();
  for (std::string& text : texts) {
    for (const Step& step : steps_) {
      const bool is_text = valid_utf8_prefix(text) == text.size();  // not a part of a character
      if (step.between && is_text) text = step.between(text);
    }
    bytes_.push_back(static_cast<uint32_t>(text.size()));
  }
}

bool Decoder::is(size_t step, StepKind kind) const {
  return step < steps_.size() && steps_[step].kind == kind;
}

bool Decoder::has(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < known_.size() && known_[static_cast<size_t>(id)];
}

std::string_view Decoder::text_of(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  return std::string_view(texts_).substr(begins_[index], begins_[index + 1] - begins_[index]);
}

std::string Decoder::join_fallback(std::span<const int32_t> ids) const {
  std::string text, bytes;
  for (const int32_t id : ids) {
    if (!has(id)) continue;
    const std::string_view token = text_of(id);
    if (const std::optional<char> byte = byte_of(token)) {
      bytes += *byte;
      continue;
    }
    if (!bytes.empty()) append_bytes(text, bytes);
    text += token;
  }
  append_bytes(text, bytes);
  return text;
}

std::string Decoder::decode(std::span<const int32_t> ids) const {
  if (!none_ && steps_.empty()) {
    std::string bytes;
    for (const int32_t id : ids) {
      if (has(id)) bytes += text_of(id);
    }
    return repaired(std::move(bytes));
  }
  Tokens tokens;
  size_t next = 0;
  if (is(0, StepKind::byte_fallback) && is(1, StepKind::fuse)) {
    tokens.push_back(join_fallback(ids));
    next = 2;
  } else {
    for (const int32_t id : ids) {
      if (has(id)) tokens.emplace_back(text_of(id));
    }
  }
  for (; next < steps_.size(); ++next) steps_[next].decode(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (none_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace pptrain::tokenizer
