#include "core/text/tokenizer/pattern.h"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "core/base/error.h"
#include "core/text/tokenizer/unicode.h"

namespace pptrain::tokenizer {
namespace {

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using CodePointer = std::unique_ptr<pcre2_code, Free<pcre2_code_free>>;
using CompileContext = std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context_free>>;
using MatchContext = std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>>;
using Stack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack_free>>;

constexpr size_t smallest_stack = size_t{1} << 15, largest_stack = size_t{1} << 28;  // bytes

std::string reason(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// What a thread searches with.
struct Workspace {
  Stack stack{pcre2_jit_stack_create(smallest_stack, largest_stack, nullptr)};
  MatchContext context{pcre2_match_context_create(nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};

  Workspace() {
    if (!stack || !context || !data) throw std::bad_alloc();
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

Workspace& workspace() {
  thread_local Workspace own;
  return own;
}

}  // namespace

struct Pattern::Code {
  CodePointer code;
  bool jit;

  Code(std::string_view pattern, uint32_t options) {
    const CompileContext context(pcre2_compile_context_create(nullptr));
    if (!context) throw std::bad_alloc();
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context.get(), 100);
    int error = 0;
    size_t place = 0;
    code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | options, &error, &place, context.get()));
    if (!code) throw Error(fmt::format("PCRE2 cannot compile '{}': {}", pattern, reason(error)));
    jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) == 0;
  }
};

Pattern::Pattern(std::string shown, std::shared_ptr<const Code> plain, std::shared_ptr<const Code> exact)
    : shown_(std::move(shown)), plain_(std::move(plain)), exact_(std::move(exact)) {}

Pattern Pattern::regex(std::string_view pattern) {
  constexpr uint32_t options = PCRE2_UCP | PCRE2_MULTILINE;
  const std::string plain = pcre2_pattern(pattern, Classes::library),
                    exact = pcre2_pattern(pattern, Classes::exact);
  return {std::string(pattern), std::make_shared<const Code>(plain, options),
          exact == plain ? nullptr : std::make_shared<const Code>(exact, options)};
}

Pattern Pattern::literal(std::string_view text) {
  return {std::string(text), std::make_shared<const Code>(text, PCRE2_LITERAL), nullptr};
}

void Pattern::each_match(std::string_view text, bool newer,
                         const std::function<void(TextRange)>& take) const {
  const Code& code = newer && exact_ ? *exact_ : *plain_;
  Workspace& own = workspace();
  const auto match = code.jit ? pcre2_jit_match : pcre2_match;
  std::optional<size_t> last_end;
  for (size_t at = 0; at <= text.size();) {
    const int found = match(code.code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                            PCRE2_NO_UTF_CHECK, own.data.get(), own.context.get());
    if (found == PCRE2_ERROR_NOMATCH) return;
    if (found < 0) {
      throw Error(
          fmt::format("tokenizer: the pattern '{}' cannot be searched for at byte {} of a text of {}: {}",
                      shown_, at, text.size(), reason(found)));
    }
    const size_t* bounds = pcre2_get_ovector_pointer(own.data.get());
    const TextRange result{bounds[0], bounds[1]};
    if (result.begin == result.end && last_end == result.end) {
      at += at < text.size() ? code_point_size(text[at]) : 1;
    } else {
      at = result.end;
      last_end = result.end;
      take(result);
    }
  }
}

bool Pattern::replace(std::string_view text, std::string_view content, std::string& out) const {
  if (text.empty()) return false;
  size_t copied = 0;
  bool changed = false;
  each_match(text, has_newer_character(text), [&](TextRange match) {
    out += text.substr(copied, match.begin - copied);
    out += content;
    copied = match.end;
    changed = true;
  });
  if (changed) out += text.substr(copied);
  return changed;
}

}  // namespace pptrain::tokenizer
