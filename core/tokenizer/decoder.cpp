#include "core/tokenizer/decoder.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/tokenizer/bpe.h"
#include "core/tokenizer/pattern.h"
#include "core/tokenizer/unicode.h"

namespace pptrain::tokenizer {

// One step, from a list of texts to another.
class DecoderStep {
 public:
  virtual ~DecoderStep() = default;
  virtual void apply(std::vector<std::string>& tokens) const = 0;
  // Does it look at each token alone?
  virtual bool each_alone() const { return false; }
  enum class Kind { byte_level, byte_fallback, fuse, other };
  virtual Kind kind() const { return Kind::other; }
};

namespace {

using Tokens = std::vector<std::string>;

// What comes of a token is put in its place.
class EachAlone : public DecoderStep {
 public:
  void apply(Tokens& tokens) const override {
    for (std::string& token : tokens) token = decode(token);
  }
  bool each_alone() const override { return true; }

 private:
  virtual std::string decode(const std::string& token) const = 0;
};

class ReplaceDecoder : public EachAlone {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 private:
  std::string decode(const std::string& token) const override {
    if (token.empty()) return token;
    std::string out;
    size_t copied = 0;
    pattern_.each_match(token, has_newer_character(token), [&](TextRange match) {
      out.append(token, copied, match.begin - copied);
      out += content_;
      copied = match.end;
    });
    return out.append(token, copied);
  }

  Pattern pattern_;
  std::string content_;
};

// Takes up to so many of one character from both ends.
class StripDecoder : public EachAlone {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}

 private:
  std::string decode(const std::string& token) const override {
    std::string_view rest = token;
    for (int64_t i = 0; i < start_ && rest.starts_with(content_); ++i) rest.remove_prefix(content_.size());
    for (int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i) rest.remove_suffix(content_.size());
    return std::string(rest);
  }

  std::string content_;
  int64_t start_, stop_;
};

class MetaspaceDecoder : public DecoderStep {
 public:
  MetaspaceDecoder(std::string replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}
  void apply(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string_view with = i == 0 && prepended_ ? "" : " ";
      std::string& token = tokens[i];
      for (size_t at = 0; (at = token.find(replacement_, at)) != std::string::npos; at += with.size()) {
        token.replace(at, replacement_.size(), with);
      }
    }
  }
  bool each_alone() const override { return !prepended_; }

 private:
  std::string replacement_;
  bool prepended_;
};

class FuseDecoder : public DecoderStep {
 public:
  void apply(Tokens& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens.assign(1, std::move(all));
  }
  Kind kind() const override { return Kind::fuse; }
};

class ByteLevelDecoder : public DecoderStep {
 public:
  void apply(Tokens& tokens) const override {
    std::string bytes, text;
    for (const std::string& token : tokens) bytes += bytes_of_token(token).value_or(token);
    append_repaired(text, bytes);
    tokens.assign(1, std::move(text));
  }
  Kind kind() const override { return Kind::byte_level; }
};

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

class ByteFallbackDecoder : public DecoderStep {
 public:
  void apply(Tokens& tokens) const override {
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
  Kind kind() const override { return Kind::byte_fallback; }
};

}  // namespace

Decoder::Decoder(const JsonPart& part) : none_(false) {
  add(part);
}

void Decoder::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"type", "decoders"});
    for (const JsonPart& each : part.at("decoders").elements()) add(each);
  } else if (type == "ByteLevel") {
    part.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    steps_.push_back(std::make_shared<const ByteLevelDecoder>());
  } else if (type == "ByteFallback") {
    part.only({"type"});
    steps_.push_back(std::make_shared<const ByteFallbackDecoder>());
  } else if (type == "Fuse") {
    part.only({"type"});
    steps_.push_back(std::make_shared<const FuseDecoder>());
  } else if (type == "Strip") {
    part.only({"type", "content", "start", "stop"});
    steps_.push_back(std::make_shared<const StripDecoder>(part.character("content"),
                                                          part.at("start").integer(0, 1 << 20),
                                                          part.at("stop").integer(0, 1 << 20)));
  } else if (type == "Replace") {
    part.only({"type", "pattern", "content"});
    steps_.push_back(
        std::make_shared<const ReplaceDecoder>(read_pattern(part.at("pattern")), part.text("content")));
  } else if (type == "Metaspace") {
    part.only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
    const auto scheme = part.find("prepend_scheme");
    const bool never = (scheme && scheme->text() == "never") || !part.flag("add_prefix_space", true);
    steps_.push_back(std::make_shared<const MetaspaceDecoder>(part.character("replacement"), !never));
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
  const auto left = std::ranges::find_if(steps_, [](const auto& step) { return !step->each_alone(); });
  for (auto step = steps_.begin(); step != left; ++step) (*step)->apply(texts);
  steps_.erase(steps_.begin(), left);
  // A ByteLevel behind makes bytes of each token alone too.
  const bool bytes = steps_.size() == 1 && steps_[0]->kind() == DecoderStep::Kind::byte_level;
  texts_.clear();
  begins_.assign(1, 0);
  for (const std::string& text : texts) {
    texts_ += bytes ? bytes_of_token(text).value_or(text) : text;
    begins_.push_back(static_cast<uint32_t>(texts_.size()));
  }
}

bool Decoder::has(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < known_.size() && known_[static_cast<size_t>(id)];
}

std::string_view Decoder::text_of(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  return std::string_view(texts_).substr(begins_[index], begins_[index + 1] - begins_[index]);
}

std::string Decoder::join_bytes(std::span<const int32_t> ids) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (has(id)) bytes += text_of(id);
  }
  if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  append_repaired(text, bytes);
  return text;
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

size_t Decoder::bytes_of(int32_t id) const {
  if (!has(id)) return 0;
  const std::string_view text = text_of(id);
  const bool falls_back = !steps_.empty() && steps_.front()->kind() == DecoderStep::Kind::byte_fallback;
  return falls_back && byte_of(text) ? 1 : text.size();
}

std::string Decoder::decode(std::span<const int32_t> ids) const {
  using Kind = DecoderStep::Kind;
  const auto is = [this](size_t step, Kind kind) {
    return step < steps_.size() && steps_[step]->kind() == kind;
  };
  if (!none_ && (steps_.empty() || (steps_.size() == 1 && is(0, Kind::fuse)))) {
    std::string text;
    for (const int32_t id : ids) {
      if (has(id)) text += text_of(id);
    }
    return text;
  }
  if (steps_.size() == 1 && is(0, Kind::byte_level)) return join_bytes(ids);
  Tokens tokens;
  size_t next = 0;
  if (is(0, Kind::byte_fallback) && is(1, Kind::fuse)) {
    tokens.push_back(join_fallback(ids));
    next = 2;
  } else {
    for (const int32_t id : ids) {
      if (has(id)) tokens.emplace_back(text_of(id));
    }
  }
  for (; next < steps_.size(); ++next) steps_[next]->apply(tokens);
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (none_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace pptrain::tokenizer
