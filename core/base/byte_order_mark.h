// The mark of UTF-8 with which some programs begin their files.
#pragma once

#include <string_view>

namespace pptrain {

// The text without the mark, if it begins with one.
inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  return text.starts_with(mark) ? text.substr(mark.size()) : text;
}

}  // namespace pptrain
