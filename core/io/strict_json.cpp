#include "core/io/strict_json.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/io/git_lfs.h"

namespace pptrain::io {
namespace {

// " at byte 2, near 'not json'". byte: from 1; the library counts the end of the text too.
std::string place_in(std::string_view text, size_t byte) {
  constexpr size_t shown = 20;
  const size_t at = std::min(byte == 0 ? 0 : byte - 1, text.size());
  if (at == text.size()) return ": it ends too early";
  std::string near(text.substr(at, shown));
  for (char& c : near) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return " at byte " + std::to_string(at + 1) + ", near '" + near + "'";
}

}  // namespace

nlohmann::json parse_strict_json(std::string_view text, const std::string& what, int max_depth) {
  refuse_git_lfs_pointer(text, what);
  // The library takes a NUL byte for the end of the text, and skips a byte order mark.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw Error(what + ": not valid JSON: byte " + std::to_string(nul) + " is NUL");
  }
  if (text.starts_with("\xef\xbb\xbf")) {
    throw Error(what + ": not valid JSON: it begins with a byte order mark");
  }
  std::vector<std::unordered_set<std::string>> keys;  // of the objects that are open, by their depth
  const auto check = [&](int depth, nlohmann::json::parse_event_t event, const nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    const auto level = static_cast<size_t>(depth);
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= max_depth)
        throw Error(what + ": nested deeper than " + std::to_string(max_depth) + " levels");
      keys.resize(level + 1);
      keys.back().clear();
    } else if (event == Event::key) {  // one level below its object's start
      const auto& key = value.get_ref<const std::string&>();
      if (!keys.at(level - 1).insert(key).second)
        throw Error(what + ": the key '" + key + "' is there twice");
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text.begin(), text.end(), check);
  } catch (const nlohmann::json::parse_error& error) {
    throw Error(what + ": not valid JSON" + place_in(text, error.byte));
  } catch (const nlohmann::json::exception& error) {  // a number that no type holds
    const std::string_view said = error.what();
    throw Error(what + ": not valid JSON: " + std::string(said.substr(said.find("] ") + 2)));
  }
}

int64_t integer_from(const nlohmann::json& value, int64_t min, int64_t max, const std::string& what) {
  const bool held =
      value.is_number_unsigned() ? std::in_range<int64_t>(value.get<uint64_t>()) : value.is_number_integer();
  if (!held || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    throw Error(what + ": " + value.dump() + " is not an integer from " + std::to_string(min) + " to " +
                std::to_string(max));
  }
  return value.get<int64_t>();
}

}  // namespace pptrain::io
