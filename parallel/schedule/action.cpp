#include "parallel/schedule/action.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>

#include "core/base/error.h"
#include "core/base/text.h"

namespace pptrain::schedule {
namespace {

struct Word {
  ActionKind kind;
  std::string_view text;
  bool has_microbatch;
};

constexpr std::array<Word, 14> words = {{
    // in the order of ActionKind
    {ActionKind::forward, "F", true},
    {ActionKind::backward, "B", true},
    {ActionKind::backward_input, "I", true},
    {ActionKind::backward_weight, "W", true},
    {ActionKind::head_forward, "S", true},
    {ActionKind::head_backward, "T", true},
    {ActionKind::send_f, "SEND_F", true},
    {ActionKind::recv_f, "RECV_F", true},
    {ActionKind::send_b, "SEND_B", true},
    {ActionKind::recv_b, "RECV_B", true},
    {ActionKind::recv_head, "RECV_HEAD", true},
    {ActionKind::unshard, "UNSHARD", false},
    {ActionKind::reshard, "RESHARD", false},
    {ActionKind::reduce_grad, "REDUCE_GRAD", false},
}};
static_assert([] {
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].kind != static_cast<ActionKind>(i)) return false;
  }
  return true;
}());
constexpr std::string_view overlap_word = "OVERLAP_F_B", receive_of_head_begins = "RECV_HEAD(";

std::string_view trim(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n";
  const size_t first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

[[noreturn]] void refuse(std::string_view text, std::string_view why) {
  throw UsageError(
      fmt::format("'{}' is not a schedule action: {}. An action reads "
                  "<stage><F|B|I|W|S|T|SEND_F|RECV_F|SEND_B|RECV_B><microbatch>, "
                  "<stage><UNSHARD|RESHARD|REDUCE_GRAD>, <stage>RECV_HEAD(<F, S or T action>) or (<F "
                  "action>;<B action>)OVERLAP_F_B, for example 2F0",
                  text, why));
}

int to_int(std::string_view digits, std::string_view whole) {
  const auto value = to_number<int>(digits);
  if (!value) refuse(whole, fmt::format("{} is not a number in range", digits));
  return *value;
}

Action parse_single(std::string_view text, std::string_view whole) {
  constexpr std::string_view digit = "0123456789";
  if (const size_t maker = text.find(receive_of_head_begins); maker != std::string_view::npos) {
    if (text.back() != ')') refuse(whole, "the closing bracket is missing");
    const std::string_view made = text.substr(maker + receive_of_head_begins.size());
    if (made.find(receive_of_head_begins) != std::string_view::npos)
      refuse(whole, "RECV_HEAD is of what an F, S or T makes");
    const Action action = parse_single(made.substr(0, made.size() - 1), whole);
    if (action.kind != ActionKind::forward && !is_of_head(action.kind))
      refuse(whole, "RECV_HEAD is of what an F, S or T makes");
    return receive_of_head(to_int(text.substr(0, maker), whole), action);
  }
  const size_t digits = std::min(text.find_first_not_of(digit), text.size());
  if (digits == 0) refuse(whole, "it does not begin with a stage number");
  const size_t word_end = std::max(digits, text.find_last_not_of(digit) + 1);

  std::string_view name = text.substr(digits, word_end - digits);
  if (name == "FULL_BACKWARD") name = "B";
  for (const Word& word : words) {
    if (word.text != name || word.kind == ActionKind::recv_head) continue;  // read above
    const std::string_view microbatch = text.substr(word_end);
    if (word.has_microbatch && microbatch.empty()) refuse(whole, "the microbatch number is missing");
    if (!word.has_microbatch && !microbatch.empty()) {
      refuse(whole, fmt::format("{} is of a whole stage and has no microbatch number", word.text));
    }
    return {word.kind, to_int(text.substr(0, digits), whole),
            word.has_microbatch ? to_int(microbatch, whole) : -1};
  }
  refuse(whole, fmt::format("{} is unknown", name));
}

Action parse_pair(std::string_view text) {
  const size_t close = text.find(')');
  if (close == std::string_view::npos) refuse(text, "the closing bracket is missing");
  if (trim(text.substr(close + 1)) != overlap_word) refuse(text, "a pair ends in OVERLAP_F_B");
  const std::string_view inside = text.substr(1, close - 1);
  const size_t semicolon = inside.find(';');
  if (semicolon == std::string_view::npos || inside.find(';', semicolon + 1) != std::string_view::npos) {
    refuse(text, "a pair has exactly two actions with ';' between them");
  }
  const Action first = parse_single(trim(inside.substr(0, semicolon)), text);
  const Action second = parse_single(trim(inside.substr(semicolon + 1)), text);
  if (first.kind != ActionKind::forward || !is_gradient(second.kind)) {
    refuse(text, "a pair is an F, then a B or I");
  }
  return overlapped(first, second);
}

}  // namespace

Action overlapped(const Action& forward, const Action& backward) {
  if (forward.kind != ActionKind::forward || !is_gradient(backward.kind)) {
    throw Error(fmt::format("{} and {} make no overlapped pair, which is an F, then a B or I",
                            to_string(forward), to_string(backward)));
  }
  return {.kind = ActionKind::overlapped_pair,
          .stage = forward.stage,
          .microbatch = forward.microbatch,
          .backward_stage = backward.stage,
          .backward_microbatch = backward.microbatch,
          .backward_kind = backward.kind};
}

std::string to_string(const Action& action) {
  if (action.kind == ActionKind::overlapped_pair) {
    return fmt::format("({};{}){}", to_string(forward_of(action)), to_string(backward_of(action)),
                       overlap_word);
  }
  const std::string_view word = words[static_cast<size_t>(action.kind)].text;
  if (action.kind == ActionKind::recv_head)
    return fmt::format("{}{}({})", action.stage, word, to_string(maker_of(action)));
  if (action.microbatch < 0) return fmt::format("{}{}", action.stage, word);
  return fmt::format("{}{}{}", action.stage, word, action.microbatch);
}

std::string in_words(const Action& action) {
  if (action.kind == ActionKind::overlapped_pair || action.kind == ActionKind::recv_head)
    return to_string(action);
  const std::string_view word = words[static_cast<size_t>(action.kind)].text;
  return action.microbatch < 0
             ? fmt::format("{} stage {}", word, action.stage)
             : fmt::format("{} stage {} microbatch {}", word, action.stage, action.microbatch);
}

Action parse_action(std::string_view text) {
  const std::string_view trimmed = trim(text);
  if (trimmed.empty()) refuse(text, "it is empty");
  return trimmed.front() == '(' ? parse_pair(trimmed) : parse_single(trimmed, trimmed);
}

}  // namespace pptrain::schedule
