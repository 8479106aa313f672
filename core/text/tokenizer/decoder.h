// From tokens to text: "decoder" of tokenizer.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/text/tokenizer/json_part.h"

namespace pptrain::tokenizer {

class Decoder {
 public:
  Decoder() = default;
  // ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace and Sequence. Throws Error that names any other.
  explicit Decoder(const JsonPart& part);

  // Once: the texts of all tokens. What can be done with each alone is done here.
  void set_tokens(const std::unordered_map<int32_t, std::string>& tokens);
  // Ids that have no token are passed over.
  std::string decode(std::span<const int32_t> ids) const;
  // Bytes of text that a token stands for between other tokens; 0 for an id that has no token.
  size_t bytes_of(int32_t id) const { return has(id) ? bytes_[static_cast<size_t>(id)] : 0; }
  // False without a decoder: then there are spaces between tokens, which are no token's.
  bool has_bytes() const { return !none_; }

 private:
  // each_alone: what comes of a text takes its place.
  enum class StepKind { each_alone, byte_level, byte_fallback, fuse, other };
  using OfOne = std::function<std::string(const std::string&)>;
  struct Step {
    StepKind kind;
    std::function<void(std::vector<std::string>&)> decode;  // a list of texts to another
    OfOne between = {};  // what comes of a token between other tokens; empty: it stays
  };
  void add(const JsonPart& part);
  void add_each_alone(const OfOne& decode, bool between = true);
  void count_bytes(std::vector<std::string> texts);
  bool joins() const;  // has a step joined all texts to one?
  bool is(size_t step, StepKind kind) const;
  bool has(int32_t id) const;
  std::string_view text_of(int32_t id) const;
  std::string join_fallback(std::span<const int32_t> ids) const;

  std::vector<Step> steps_;       // those that are left, after set_tokens
  bool none_ = true;              // no decoder: tokens with spaces between them
  std::string texts_;             // of all tokens
  std::vector<uint32_t> begins_;  // of each id's, and one more
  std::vector<bool> known_;
  std::vector<uint32_t> bytes_;  // of each id
};

}  // namespace pptrain::tokenizer
