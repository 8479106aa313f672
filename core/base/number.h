// Numbers in texts.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace pptrain {

// The number that the whole text says in decimal digits, or in digits of `base`. Nothing if the text is no
// such number, or if `Number` cannot hold it. base: 2 to 36, for whole numbers only.
template <typename Number, typename... Base>
std::optional<Number> to_number(std::string_view text, Base... base) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, base...);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

}  // namespace pptrain
