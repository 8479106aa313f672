#include "core/text/corpus/foreign_text.h"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"

namespace pptrain::corpus {
namespace {

using namespace std::string_view_literals;

struct Packer {
  std::string_view name, program;  // program: writes the unpacked file to standard output
  std::string_view begin, more;    // the first bytes, and those from the fifth on
};

constexpr std::array packers{
    Packer{"bzip2", "bzcat", "BZh", "1AY&SY"}, Packer{"xz", "xzcat", "\xfd\x37zXZ\0"sv, ""},
    Packer{"zip", "unzip -p", "PK\3\4", ""},   Packer{"LZ4", "lz4cat", "\x04\x22\x4d\x18", ""},
    Packer{"gzip", "", "\x1f\x8b\x08", ""},    Packer{"zstd", "", "\x28\xb5\x2f\xfd", ""},
    Packer{"Parquet", "", "PAR1", ""},
};

bool begins(std::string_view text, const Packer& packer) {
  return text.starts_with(packer.begin) && (packer.more.empty() || text.substr(4).starts_with(packer.more));
}

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what) {
  throw Error(fmt::format("'{}': {}", file.string(), what));
}

// Every second byte is 0, as in UTF-16 without a mark whose first characters are of ASCII.
bool alternates(std::string_view text, size_t zero) {
  constexpr size_t seen = 8;
  if (text.size() < seen) return false;
  for (size_t i = 0; i < seen; ++i) {
    if ((text[i] == '\0') != (i % 2 == zero)) return false;
  }
  return true;
}

// iconv's name of a wide encoding, or "".
std::string_view wide_encoding(std::string_view text) {
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "UTF-16";
  if (alternates(text, 1)) return "UTF-16LE";
  return alternates(text, 0) ? "UTF-16BE" : "";
}

}  // namespace

void refuse_packed(const std::filesystem::path& file, std::string_view begin) {
  for (const Packer& packer : packers) {
    if (!begins(begin.substr(0, 16), packer)) continue;
    if (packer.name == "Parquet") refuse(file, "it is a Parquet file: write data.format = \"parquet\"");
    if (packer.program.empty())
      refuse(file, fmt::format("{} packed it, but its name does not end in {}: rename it", packer.name,
                               packer.name == "gzip" ? ".gz" : ".zst"));
    refuse(file, fmt::format("{} packed it, but only .gz and .zst are unpacked: {} '{}' | zstd > NEW.zst",
                             packer.name, packer.program, file.string()));
  }
}

void refuse_wide(const std::filesystem::path& file, std::string_view begin) {
  const std::string_view encoding = wide_encoding(begin);
  if (encoding.empty()) return;
  refuse(file, fmt::format("the text is {}, but UTF-8 is read: iconv -f {} -t UTF-8 '{}' > NEW", encoding,
                           encoding, file.string()));
}

void refuse_json(const std::filesystem::path& file, std::string_view first_line) {
  const size_t begin = first_line.find_first_not_of(" \t\r");
  if (begin == std::string_view::npos) return;
  const auto fail = [&](std::string_view what, std::string_view filter) {
    refuse(file, fmt::format(
                     "{}, but a whole object on each line is read (JSON Lines): jq -c '{}' '{}' > NEW.jsonl",
                     what, filter, file.string()));
  };
  if (first_line[begin] == '[') {
    const nlohmann::json list = nlohmann::json::parse(first_line, nullptr, /*allow_exceptions=*/false);
    if (list.is_discarded() || (!list.empty() && list.front().is_object()))
      fail("it is one JSON array", ".[]");
  }
  if (first_line[begin] == '{' && first_line.find_first_not_of(" \t\r", begin + 1) == std::string_view::npos)
    fail("an object goes on over several lines", ".");
}

}  // namespace pptrain::corpus
