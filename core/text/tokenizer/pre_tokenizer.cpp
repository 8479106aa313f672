#include "core/text/tokenizer/pre_tokenizer.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <functional>
#include <utility>

#include "core/text/tokenizer/bpe.h"
#include "core/text/tokenizer/pattern.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::tokenizer {

// A part of a text, as PreTokenizer::cut has it.
struct TextSpan {
  std::string_view text;
  bool begins_input = false, newer = false;
};

struct StepScratch {
  struct Part {
    size_t begin, end;
    bool match;
  };
  std::string text;
  std::vector<Part> parts;
};

struct PreTokenizer::Scratch {
  std::vector<StepScratch> of_step;
};

namespace {

using Parts = std::vector<StepScratch::Part>;

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

// Joins each part to the one before it if `joins` (is that one a match, is this one?) says so.
template <typename Joins>
void join(Parts& parts, const Joins& joins) {
  size_t kept = 0;
  bool after_match = false;
  for (const StepScratch::Part part : parts) {
    if (kept > 0 && joins(after_match, part.match)) {
      StepScratch::Part& last = parts[kept - 1];
      last.begin = std::min(last.begin, part.begin);
      last.end = std::max(last.end, part.end);
    } else {
      parts[kept++] = part;
    }
    after_match = part.match;
  }
  parts.resize(kept);
}

// A match joins its neighbour, unless that is a match too.
bool merges(bool after_match, bool match) {
  return match && !after_match;
}

// The parts of a text, found and not, as a behavior wants them (NormalizedString::split).
void cut_parts(const TextSpan& span, Parts& parts, Behavior behavior, const SpanSink& sink) {
  if (behavior == Behavior::merged_with_previous) join(parts, merges);
  if (behavior == Behavior::merged_with_next) {
    std::ranges::reverse(parts);
    join(parts, merges);
    std::ranges::reverse(parts);
  }
  if (behavior == Behavior::contiguous) join(parts, std::equal_to());
  for (const auto& [begin, end, match] : parts) {
    if (begin < end && !(match && behavior == Behavior::removed)) sink(sub_span(span, begin, end));
  }
}

// Hands `take` the matches of `find`, and the parts between them: begin, end, is it a match?
template <typename Find, typename Take>
void each_part(std::string_view text, const Find& find, const Take& take) {
  size_t done = 0;
  find([&](TextRange match) {
    if (done != match.begin) take(done, match.begin, false);
    take(match.begin, match.end, true);
    done = match.end;
  });
  if (done != text.size()) take(done, text.size(), false);
}

// Cuts at each match of `find` in the span; with `invert` the parts between count as matches.
template <typename Find>
void cut_at(const TextSpan& span, const Find& find, Behavior behavior, bool invert, Parts& parts,
            const SpanSink& sink) {
  if (behavior == Behavior::isolated) {
    return each_part(span.text, find, [&](size_t begin, size_t end, bool /*match*/) {
      if (begin < end) sink(sub_span(span, begin, end));
    });
  }
  parts.clear();
  each_part(span.text, find, [&](size_t begin, size_t end, bool match) {
    parts.push_back({begin, end, match != invert});
  });
  cut_parts(span, parts, behavior, sink);
}

// --- Steps, as PreTokenizer::steps_ has them.

auto split(const Pattern& pattern, Behavior behavior, bool invert) {
  return [=](const TextSpan& span, StepScratch& scratch, const SpanSink& sink) {
    const auto find = [&](const auto& found) { pattern.each_match(span.text, span.newer, found); };
    cut_at(span, find, behavior, invert, scratch.parts, sink);
  };
}

// Cuts at characters of a kind, each of which is a match.
auto split_at_characters(bool (*is_match)(uint32_t), Behavior behavior) {
  return [=](const TextSpan& span, StepScratch& scratch, const SpanSink& sink) {
    const auto find = [&](const auto& found) {
      for (size_t at = 0; at < span.text.size();) {
        const CodePoint c = code_point(span.text, at);
        if (is_match(c.value)) found(TextRange{at, at + c.size});
        at += c.size;
      }
    };
    cut_at(span, find, behavior, /*invert=*/false, scratch.parts, sink);
  };
}

// Runs of word characters, and of what is neither such nor blank.
void cut_words(const TextSpan& span, StepScratch& /*scratch*/, const SpanSink& sink) {
  enum class CharKind { none, blank, word, other };
  CharKind last = CharKind::none;
  size_t begin = 0, at = 0;
  const auto end_run = [&] {
    if (last == CharKind::word || last == CharKind::other) sink(sub_span(span, begin, at));
  };
  while (at < span.text.size()) {
    const CodePoint c = code_point(span.text, at);
    const CharKind kind = is_word(c.value)          ? CharKind::word
                          : is_white_space(c.value) ? CharKind::blank
                                                    : CharKind::other;
    if (kind != last) {
      end_run();
      begin = at;
      last = kind;
    }
    at += c.size;
  }
  end_run();
}

enum class Prepend { first, never, always };

auto metaspace(const std::string& mark, Prepend prepend, bool split) {
  return [=](const TextSpan& span, StepScratch& scratch, const SpanSink& sink) {
    std::string& text = scratch.text;
    text.clear();
    const bool marked = span.text.starts_with(' ') || span.text.starts_with(mark);
    if (!marked && (prepend == Prepend::always || (prepend == Prepend::first && span.begins_input)))
      text = mark;
    for (std::string_view rest = span.text; !rest.empty();) {
      const size_t space = std::min(rest.find(' '), rest.size());
      text += rest.substr(0, space);
      if (space < rest.size()) text += mark;
      rest.remove_prefix(std::min(space + 1, rest.size()));
    }
    const TextSpan replaced{text, span.begins_input, span.newer};
    if (!split) return sink(replaced);
    const auto find = [&](const auto& found) {
      for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += mark.size())
        found(TextRange{at, at + mark.size()});
    };
    cut_at(replaced, find, Behavior::merged_with_next, /*invert=*/false, scratch.parts, sink);
  };
}

void prefix_space(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) {
  if (span.text.starts_with(' ')) return sink(span);
  scratch.text.assign(1, ' ');
  scratch.text += span.text;
  sink({scratch.text, span.begins_input, span.newer});
}

// Bytes become characters, as ByteLevel makes them, if further steps look at these.
void to_byte_characters(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) {
  scratch.text.clear();
  append_byte_characters(scratch.text, span.text);
  sink({scratch.text, span.begins_input, false});
}

void from_byte_characters(const TextSpan& span, StepScratch& scratch, const SpanSink& sink) {
  scratch.text = bytes_of_token(span.text).value();
  sink({scratch.text, span.begins_input, false});
}

// GPT-2's: https://github.com/openai/gpt-2/blob/master/src/encoder.py
constexpr std::string_view gpt2_pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

auto read_metaspace(const JsonPart& part) {
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
  return metaspace(part.character("replacement"), prepend, part.flag("split", true));
}

// Of every type but ByteLevel and Sequence.
TextStep read_step(const std::string& type, const JsonPart& part) {
  if (type == "Metaspace") return read_metaspace(part);
  if (type == "Split") {
    part.only({"type", "pattern", "behavior", "invert"});
    return split(read_pattern(part.at("pattern")), read_behavior(part.at("behavior")), part.flag("invert"));
  }
  if (type == "Digits") {
    part.only({"type", "individual_digits"});
    return split_at_characters(is_number,
                               part.flag("individual_digits") ? Behavior::isolated : Behavior::contiguous);
  }
  if (type == "Punctuation") {
    part.only({"type", "behavior"});
    const auto behavior = part.find("behavior");
    return split_at_characters(is_punctuation, behavior ? read_behavior(*behavior) : Behavior::isolated);
  }
  if (type == "Whitespace") {
    part.only({"type"});
    return cut_words;
  }
  if (type != "WhitespaceSplit") part.refuse(fmt::format("the pre-tokenizer '{}' is not supported", type));
  part.only({"type"});
  return split_at_characters(is_white_space, Behavior::removed);
}

}  // namespace

std::shared_ptr<PreTokenizer::Scratch> PreTokenizer::make_scratch() {
  return std::make_shared<Scratch>();
}

PreTokenizer::PreTokenizer(const JsonPart& part) {
  add(part);
  if (byte_characters_) steps_.push_back(from_byte_characters);
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
    if (!byte_characters_) steps_.push_back(to_byte_characters);
    byte_characters_ = true;
  }
  if (type == "ByteLevel") return add_byte_level(part);
  steps_.push_back(read_step(type, part));
  looks_at_begin_ |=
      type == "Metaspace" && part.find("prepend_scheme") && part.text("prepend_scheme") == "first";
}

void PreTokenizer::add_byte_level(const JsonPart& part) {
  part.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  part.flag("trim_offsets");  // says nothing of ids
  if (part.flag("add_prefix_space")) steps_.push_back(prefix_space);
  if (part.flag("use_regex", true)) {
    steps_.push_back(split(Pattern::regex(gpt2_pattern), Behavior::isolated, /*invert=*/false));
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
    steps_[step](span, scratch.of_step[step], [&sink](const TextSpan& word) { sink(word.text); });
    return;
  }
  steps_[step](span, scratch.of_step[step],
               [&, step](const TextSpan& part) { run(step + 1, part, scratch, sink); });
}

}  // namespace pptrain::tokenizer
