// Cuts a text into words, which merges never cross: "pre_tokenizer" of tokenizer.json.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/text/tokenizer/json_part.h"

namespace pptrain::tokenizer {

// Takes the words, in order; each is valid during the call alone.
using WordSink = std::function<void(std::string_view word)>;

struct TextSpan;
struct StepScratch;
using SpanSink = std::function<void(const TextSpan&)>;
// Hands on the parts of a span. The scratch is this step's alone until it returns.
using TextStep = std::function<void(const TextSpan&, StepScratch&, const SpanSink&)>;

class PreTokenizer {
 public:
  struct Scratch;  // of one thread
  static std::shared_ptr<Scratch> make_scratch();

  PreTokenizer() = default;
  // ByteLevel (once, and no Metaspace after it), Split, Digits, Punctuation, Metaspace, Whitespace,
  // WhitespaceSplit and Sequence. Throws Error that names any other.
  explicit PreTokenizer(const JsonPart& part);

  // Are words bytes, of which each is a character of the vocabulary (ByteLevel)?
  bool byte_level() const { return byte_level_; }
  // Does it matter whether a span begins the input (Metaspace with prepend_scheme "first")?
  bool looks_at_begin() const { return looks_at_begin_; }
  // text: not empty. begins_input: at byte 0 of the text as it was given. newer: has_newer_character() of it,
  // or of what it is a part of.
  void cut(std::string_view text, bool begins_input, bool newer, Scratch& scratch,
           const WordSink& sink) const;

 private:
  void add(const JsonPart& part);
  void add_byte_level(const JsonPart& part);
  void run(size_t step, const TextSpan& span, Scratch& scratch, const WordSink& sink) const;

  std::vector<TextStep> steps_;
  bool byte_level_ = false, looks_at_begin_ = false;
  bool byte_characters_ = false;  // there are steps after ByteLevel, which look at the characters of bytes
};

}  // namespace pptrain::tokenizer
