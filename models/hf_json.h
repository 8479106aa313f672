// A JSON object of a Hugging Face config.json, read key by key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pptrain::models {

// A key that is null counts as absent, as in transformers for most keys. Every function throws UsageError
// that names the file and the key where the value is not what the function reads.
class HfJson {
 public:
  // `where` begins each message. `object` must outlive this.
  HfJson(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const char* key) const;
  bool is_null(const char* key) const;
  bool is_filled(const char* key) const;  // there, and no empty object
  int64_t size(const char* key) const;    // from 1; required
  int64_t size(const char* key, int64_t fallback) const;
  double number(const char* key, double fallback) const;
  double positive(const char* key, double fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::vector<int64_t> integers(const char* key) const;  // from 0; empty where absent
  std::string text(const char* key, const std::string& fallback) const;
  HfJson object(const char* key) const;  // required

  [[noreturn]] void fail(std::string_view key, const std::string& text) const;

 private:
  // What the key holds is not `expected`: "a number".
  [[noreturn]] void wrong(const char* key, std::string_view expected) const;

  const nlohmann::json& object_;
  std::string where_;
};

}  // namespace pptrain::models
