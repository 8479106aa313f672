#include "core/tokenizer/pre_tokenizer.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>
#include <utility>

#include "core/tokenizer/bpe.h"
#include "core/tokenizer/pattern.h"
#include "core/tokenizer/unicode.h"

namespace pptrain::tokenizer {

// A part of a text, as PreTokenizer::cut has it.
struct TextSpan {
  std::string_view text;
  bool begins_input = false, newer = false;
};

namespace {

struct Part {
  size_t begin, end;
  bool match;
};
using Parts = std::vector<Part>;

struct StepScratch {
  std::string text;
  Parts parts;
};

using SpanSink = std::function<void(const TextSpan&)>;

}  // namespace

struct PreTokenizer::Scratch {
  std::vector<StepScratch> of_step;
};

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  // Hands on the parts of `span`; `scratch` is this step's alone until it returns.
  virtual void cut(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) const = 0;
};

namespace {

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior read_behavior(const JsonPart& part) {
  constexpr std::array<std::pair<const char*, Behavior>, 5> names{
      {{"Removed", Behavior::removed},
       {"Isolated", Behavior::isolated},
       {"MergedWithPrevious", Behavior::merged_with_previous},
       {"MergedWithNext", Behavior::merged_with_next},
       {"Contiguous", Behavior::contiguous}}};
  const std::string text = part.text();
  for (const auto& [name, behavior] : names) {
    if (text == name) return behavior;
  }
  part.refuse(fmt::format("'{}' is not a behavior", text));
}

TextSpan sub_span(const TextSpan& span, size_t begin, size_t end) {
  return {span.text.substr(begin, end - begin), span.begins_input && begin == 0, span.newer};
}

void hand_on(const TextSpan& span, const Parts& parts, bool without_matches, const SpanSink& sink) {
  for (const Part& part : parts) {
    if (part.begin < part.end && !(without_matches && part.match)) sink(sub_span(span, part.begin, part.end));
  }
}

// A match joins the part before it, unless that is a match too.
void merge_with_previous(Parts& parts) {
  size_t kept = 0;
  bool after_match = false;
  for (const Part part : parts) {
    if (part.match && !after_match && kept > 0) {
      parts[kept - 1].end = part.end;
    } else {
      parts[kept++] = part;
    }
    after_match = part.match;
  }
  parts.resize(kept);
}

void merge_with_next(Parts& parts) {
  std::ranges::reverse(parts);
  size_t kept = 0;
  bool after_match = false;
  for (const Part part : parts) {
    if (part.match && !after_match && kept > 0) {
      parts[kept - 1].begin = part.begin;
    } else {
      parts[kept++] = part;
    }
    after_match = part.match;
  }
  parts.resize(kept);
  std::ranges::reverse(parts);
}

void join_alike(Parts& parts) {
  size_t kept = 0;
  bool last = false;
  for (const Part part : parts) {
    if (part.match == last && kept > 0) {
      parts[kept - 1].end = part.end;
    } else {
      parts[kept++] = part;
    }
    last = part.match;
  }
  parts.resize(kept);
}

// The parts of a text, alternately found and not, as a behavior wants them (NormalizedString::split).
void cut_parts(const TextSpan& span, Parts& parts, Behavior behavior, const SpanSink& sink) {
  switch (behavior) {
    case Behavior::removed:
    case Behavior::isolated:
      break;
    case Behavior::merged_with_previous:
      merge_with_previous(parts);
      break;
    case Behavior::merged_with_next:
      merge_with_next(parts);
      break;
    case Behavior::contiguous:
      join_alike(parts);
      break;
  }
  hand_on(span, parts, behavior == Behavior::removed, sink);
}

class Split : public PreTokenizerStep {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void cut(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) const override {
    if (behavior_ == Behavior::isolated) {
      each_part(span, [&](size_t begin, size_t end, bool /*match*/) {
        if (begin < end) sink(sub_span(span, begin, end));
      });
      return;
    }
    scratch.parts.clear();
    each_part(span, [&](size_t begin, size_t end, bool match) {
      scratch.parts.push_back({begin, end, match != invert_});
    });
    cut_parts(span, scratch.parts, behavior_, sink);
  }

 private:
  template <typename Take>
  void each_part(const TextSpan& span, const Take& take) const {
    size_t done = 0;
    pattern_.each_match(span.text, span.newer, [&](TextRange match) {
      if (done != match.begin) take(done, match.begin, false);
      take(match.begin, match.end, true);
      done = match.end;
    });
    if (done != span.text.size()) take(done, span.text.size(), false);
  }

  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Cuts at characters of a kind, each of which is a match.
class CharacterSplit : public PreTokenizerStep {
 public:
  CharacterSplit(bool (*is_match)(uint32_t), Behavior behavior) : is_match_(is_match), behavior_(behavior) {}

  void cut(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) const override {
    scratch.parts.clear();
    size_t done = 0;
    for (size_t at = 0; at < span.text.size();) {
      const CodePoint c = code_point(span.text, at);
      if (is_match_(c.value)) {
        if (done < at) scratch.parts.push_back({done, at, false});
        done = at + c.size;
        scratch.parts.push_back({at, done, true});
      }
      at += c.size;
    }
    if (done < span.text.size()) scratch.parts.push_back({done, span.text.size(), false});
    cut_parts(span, scratch.parts, behavior_, sink);
  }

 private:
  bool (*is_match_)(uint32_t);
  Behavior behavior_;
};

// Runs of word characters, and of what is neither such nor blank.
class Whitespace : public PreTokenizerStep {
 public:
  void cut(const TextSpan& span, StepScratch& /*scratch*/, const SpanSink& sink) const override {
    enum class Kind { none, blank, word, other };
    Kind last = Kind::none;
    size_t begin = 0, at = 0;
    const auto end_run = [&] {
      if (last == Kind::word || last == Kind::other) sink(sub_span(span, begin, at));
    };
    while (at < span.text.size()) {
      const CodePoint c = code_point(span.text, at);
      const Kind kind = is_word(c.value) ? Kind::word : is_white_space(c.value) ? Kind::blank : Kind::other;
      if (kind != last) {
        end_run();
        begin = at;
        last = kind;
      }
      at += c.size;
    }
    end_run();
  }
};

class Metaspace : public PreTokenizerStep {
 public:
  enum class Prepend { first, never, always };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)), prepend_(prepend), split_(split) {}

  void cut(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) const override {
    std::string& text = scratch.text;
    text.clear();
    const bool marked = span.text.starts_with(' ') || span.text.starts_with(replacement_);
    if (!marked && (prepend_ == Prepend::always || (prepend_ == Prepend::first && span.begins_input))) {
      text = replacement_;
    }
    for (std::string_view rest = span.text; !rest.empty();) {
      const size_t space = std::min(rest.find(' '), rest.size());
      text += rest.substr(0, space);
      if (space < rest.size()) text += replacement_;
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
    const TextSpan replaced{text, span.begins_input, span.newer};
    if (!split_) return sink(replaced);
    scratch.parts.clear();
    size_t done = 0;
    for (size_t at = 0; (at = text.find(replacement_, at)) != std::string::npos;) {
      if (done < at) scratch.parts.push_back({done, at, false});
      done = at + replacement_.size();
      scratch.parts.push_back({at, done, true});
      at = done;
    }
    if (done < text.size()) scratch.parts.push_back({done, text.size(), false});
    cut_parts(replaced, scratch.parts, Behavior::merged_with_next, sink);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  bool split_;
};

class PrefixSpace : public PreTokenizerStep {
 public:
  void cut(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) const override {
    if (span.text.starts_with(' ')) return sink(span);
    scratch.text.assign(1, ' ');
    scratch.text += span.text;
    sink({scratch.text, span.begins_input, span.newer});
  }
};

// Bytes become characters, as ByteLevel makes them, where further steps look at these.
class ToByteCharacters : public PreTokenizerStep {
 public:
  void cut(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) const override {
    scratch.text.clear();
    append_byte_characters(scratch.text, span.text);
    sink({scratch.text, span.begins_input, false});
  }
};

class FromByteCharacters : public PreTokenizerStep {
 public:
  void cut(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) const override {
    scratch.text = bytes_of_token(span.text).value();
    sink({scratch.text, span.begins_input, false});
  }
};

// GPT-2's: https://github.com/openai/gpt-2/blob/master/src/encoder.py
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::shared_ptr<const PreTokenizerStep> read_metaspace(const JsonPart& part) {
  using Prepend = Metaspace::Prepend;
  part.only({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  Prepend prepend = Prepend::always;
  if (const auto scheme = part.find("prepend_scheme")) {
    const std::string name = scheme->text();
    if (name != "first" && name != "never" && name != "always") {
      scheme->refuse(fmt::format("'{}' is not first, never or always", name));
    }
    prepend = name == "first" ? Prepend::first : name == "never" ? Prepend::never : Prepend::always;
  }
  if (!part.flag("add_prefix_space", true)) {
    if (part.find("prepend_scheme") && prepend != Prepend::never) {
      part.refuse("'add_prefix_space' and 'prepend_scheme' contradict each other");
    }
    prepend = Prepend::never;
  }
  return std::make_shared<const Metaspace>(part.character("replacement"), prepend, part.flag("split", true));
}

}  // namespace

std::shared_ptr<PreTokenizer::Scratch> PreTokenizer::make_scratch() {
  return std::make_shared<Scratch>();
}

PreTokenizer::PreTokenizer(const JsonPart& part) {
  add(part);
  if (byte_characters_) steps_.push_back(std::make_shared<const FromByteCharacters>());
}

void PreTokenizer::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    part.only({"type", "pretokenizers"});
    for (const JsonPart& each : part.at("pretokenizers").elements()) add(each);
    return;
  }
  if (byte_level_) {
    if (type == "ByteLevel" || type == "Metaspace")
      part.refuse(fmt::format("{} after ByteLevel is not supported", type));
    if (!byte_characters_) steps_.push_back(std::make_shared<const ToByteCharacters>());
    byte_characters_ = true;
  }
  if (type == "ByteLevel") {
    add_byte_level(part);
  } else if (type == "Split") {
    part.only({"type", "pattern", "behavior", "invert"});
    steps_.push_back(std::make_shared<const Split>(read_pattern(part.at("pattern")),
                                                   read_behavior(part.at("behavior")), part.flag("invert")));
  } else if (type == "Digits") {
    part.only({"type", "individual_digits"});
    steps_.push_back(std::make_shared<const CharacterSplit>(
        is_number, part.flag("individual_digits") ? Behavior::isolated : Behavior::contiguous));
  } else if (type == "Punctuation") {
    part.only({"type", "behavior"});
    const auto behavior = part.find("behavior");
    steps_.push_back(std::make_shared<const CharacterSplit>(
        is_punctuation, behavior ? read_behavior(*behavior) : Behavior::isolated));
  } else if (type == "Metaspace") {
    steps_.push_back(read_metaspace(part));
    looks_at_begin_ |= part.find("prepend_scheme") && part.text("prepend_scheme") == "first";
  } else if (type == "Whitespace") {
    part.only({"type"});
    steps_.push_back(std::make_shared<const Whitespace>());
  } else if (type == "WhitespaceSplit") {
    part.only({"type"});
    steps_.push_back(std::make_shared<const CharacterSplit>(is_white_space, Behavior::removed));
  } else {
    part.refuse(fmt::format("the pre-tokenizer '{}' is not supported", type));
  }
}

void PreTokenizer::add_byte_level(const JsonPart& part) {
  part.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  part.flag("trim_offsets");  // says nothing of ids
  if (part.flag("add_prefix_space")) steps_.push_back(std::make_shared<const PrefixSpace>());
  if (part.flag("use_regex", true)) {
    steps_.push_back(std::make_shared<const Split>(Pattern::regex(gpt2_pattern), Behavior::isolated, false));
  }
  byte_level_ = true;
}

void PreTokenizer::cut(std::string_view text, bool begins_input, bool newer, Scratch& scratch,
                       const WordSink& sink) const {
  scratch.of_step.resize(steps_.size());
  run(0, {text, begins_input, newer}, scratch, sink);
}

void PreTokenizer::run(size_t step, const TextSpan& span, Scratch& scratch, const WordSink& sink) const {
  if (step == steps_.size()) return sink(span.text);
  if (step + 1 == steps_.size()) {
    steps_[step]->cut(span, scratch.of_step[step], [&sink](const TextSpan& word) { sink(word.text); });
    return;
  }
  steps_[step]->cut(span, scratch.of_step[step],
                    [&, step](const TextSpan& part) { run(step + 1, part, scratch, sink); });
}

}  // namespace pptrain::tokenizer
