// Text from outside (files, other processes, names of tensors): numbers in it, what a terminal may show of
// it, and JSON as a line of it.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
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

// JSON without spaces or line breaks; bytes that are no UTF-8 become U+FFFD. json: nlohmann's, ordered or
// not.
template <typename Json>
std::string one_line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The text without the mark of UTF-8 with which some programs begin their files.
inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  return text.starts_with(mark) ? text.substr(mark.size()) : text;
}

// The text without white space at its ends.
inline std::string_view trim(std::string_view text) {
  constexpr const char* blanks = " \t\r\n";
  const size_t first = text.find_first_not_of(blanks);
  return first == std::string_view::npos ? "" : text.substr(first, text.find_last_not_of(blanks) + 1 - first);
}

// Bytes of the UTF-8 character that begins with `lead`; 0 if none does.
inline size_t utf8_length(unsigned lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
}

// `text` with '?' for each byte or character that could act on a terminal: controls except line ends and
// tabs, the controls U+0080 to U+009F, and bytes that are no UTF-8, which old terminals may take for such
// controls.
inline std::string printable(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto continues = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const unsigned lead = byte(i);
    const size_t length = utf8_length(lead);
    bool sound = length > 0;
    for (size_t k = 1; k < length; ++k) sound = sound && continues(i + k);
    const bool control = length == 1 ? (lead < 0x20 && lead != '\n' && lead != '\t') || lead == 0x7F
                                     : lead == 0xC2 && byte(i + 1) < 0xA0;
    if (sound && !control) {
      shown += text.substr(i, length);
    } else {
      shown += '?';
    }
    i += sound ? length : 1;
  }
  return shown;
}

}  // namespace pptrain
