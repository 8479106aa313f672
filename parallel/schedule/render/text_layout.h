// Text that fits a terminal: numbers with units, tables, lines that go on in the next.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::schedule {

// Three digits with s, ms, us or ns: "4.54 ms".
std::string format_seconds(double seconds);

// The unit in which times up to `longest` (s) are best read: its name, and how many of it a second is.
struct TimeUnit {
  const char* name = "s";
  double per_second = 1;
};
TimeUnit time_unit(double longest);

// 1234567 -> "1,234,567"
std::string with_commas(double value);

// A time between marks of an axis: 1, 2 or 5 times a power of ten, and not below `least`.
double nice_interval(double least);

// Columns as wide as their widest cell, two spaces apart; all to the right, but for the first `left`. Rows
// may have fewer cells than the first.
std::string table(const std::vector<std::vector<std::string>>& rows, size_t left = 0);

// The text with each line of at most `width` columns: broken at spaces, and going on behind `indent` spaces.
// Words that are longer stay whole.
std::string wrapped(std::string_view text, size_t width, size_t indent = 0);

}  // namespace pptrain::schedule
