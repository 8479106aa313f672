// JSON written by hand: this folder needs no more of it.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace pptrain::schedule {

inline std::string json_number(double value) {
  std::array<char, 40> text;
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

inline std::string json_quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      std::array<char, 8> escape;
      std::snprintf(escape.data(), escape.size(), "\\u%04x", static_cast<unsigned>(c));
      result += escape.data();
    } else {
      result += c;
    }
  }
  return result + "\"";
}

// The members of one object, with the commas between them.
class JsonObject {
 public:
  JsonObject& add(const std::string& key, const std::string& json) {
    text_ += (text_.empty() ? "" : ", ") + json_quoted(key) + ": " + json;
    return *this;
  }
  JsonObject& add(const std::string& key, int value) { return add(key, std::to_string(value)); }
  JsonObject& add(const std::string& key, double value) { return add(key, json_number(value)); }
  std::string str() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

}  // namespace pptrain::schedule
