// Numbers in texts.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

namespace pptrain {

// What the whole text says in decimal digits, or in `base`'s; nothing where it is no such number, or one that
// `Number` does not hold. base: 2 to 36, of whole numbers alone.
template <typename Number, typename... Base>
std::optional<Number> to_number(std::string_view text, Base... base) {
  Number value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, base...);
  return error == std::errc() && rest == end ? std::optional(value) : std::nullopt;
}

}  // namespace pptrain
