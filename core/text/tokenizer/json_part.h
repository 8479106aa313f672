// A part of tokenizer.json that knows its place, so that errors name file and place.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::tokenizer {

// Refers to the document, which outlives it.
class JsonPart {
 public:
  JsonPart(const nlohmann::json& value, std::string file, std::string place = "");

  // Throws Error: "FILE: PLACE: WHAT".
  [[noreturn]] void refuse(std::string_view what) const;
  // Writes the same to the log, as a warning.
  void warn(std::string_view what) const;

  const nlohmann::json& value() const { return value_; }
  bool is_null() const { return value_.is_null(); }
  // An object's part; an Error if it is not there.
  JsonPart at(const char* key) const;
  // Nothing if it is not there, or null.
  std::optional<JsonPart> find(const char* key) const;
  // The elements of a list.
  std::vector<JsonPart> elements() const;
  // An Error if an object has another key: an unknown key might act.
  void only(std::initializer_list<const char*> keys) const;

  std::string type() const { return at("type").text(); }
  std::string text() const;
  bool flag() const;
  int64_t integer(int64_t min, int64_t max) const;

  std::string text(const char* key) const { return at(key).text(); }
  bool flag(const char* key) const { return at(key).flag(); }
  bool flag(const char* key, bool otherwise) const;
  // A text of exactly one character.
  std::string character(const char* key) const;

 private:
  void require_object() const;
  std::string with_place(std::string_view what) const;

  const nlohmann::json& value_;
  std::string file_, place_;
};

}  // namespace pptrain::tokenizer
