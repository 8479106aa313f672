// config.json of a Hugging Face directory: the model that it describes, and the one that is written.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/config/job_config.h"

namespace pptrain::models {

// A JSON object of config.json, read key by key. A key that is null counts as absent, as in transformers for
// most keys. If the value is not what the function reads, the function throws UsageError that names the file
// and the key.
class HfJson {
 public:
  // `where` begins each message. `object` must outlive this.
  HfJson(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(const char* key) const;
  bool is_null(const char* key) const;
  bool is_filled(const char* key) const;  // there, and no empty object
  int64_t size(const char* key) const;    // from 1; required
  int64_t size(const char* key, int64_t fallback) const;
  int64_t count(const char* key, int64_t fallback) const;  // from 0
  double number(const char* key, double fallback) const;
  double positive(const char* key, double fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::vector<int64_t> integers(const char* key) const;  // from 0; empty if absent
  std::vector<double> numbers(const char* key) const;    // empty if absent
  std::vector<std::string> texts(const char* key,
                                 std::span<const std::string_view> allowed) const;  // the same
  std::string text(const char* key, const std::string& fallback) const;
  HfJson object(const char* key) const;  // required

  // Fails if one of the keys is not 0, its default.
  void refuse_dropout(std::initializer_list<const char*> keys) const;

  [[noreturn]] void fail(std::string_view key, const std::string& text) const;

 private:
  // A list of values for which `fits` is true; range: which values `expected` means.
  template <typename Value, typename Fits>
  std::vector<Value> list(const char* key, const Fits& fits, const std::string& expected,
                          const std::string& range = {}) const;
  // The key's value, an integer from `least`; `what` it is, for the message.
  int64_t integer(const char* key, int64_t least, const char* what) const;
  // Fails: the key's value is not `expected` ("a number").
  [[noreturn]] void wrong(const char* key, std::string_view expected) const;

  const nlohmann::json& object_;
  std::string where_;
};

// Reads dir/config.json, of an architecture in the registry, with transformers' defaults for what it leaves
// out: both the older form (rope_theta, rope_scaling) and the newer one (rope_parameters). The result has
// every size set; hf_dir and init keep their defaults. Throws UsageError, which names the file and the key,
// if the file is missing or damaged, holds a number that [model] would refuse too, or describes a model that
// pptrain would not compute as transformers does.
config::ModelSection read_hf_config(const std::string& dir);

// The same from the file's text; `path` stands for the file in messages.
config::ModelSection parse_hf_config(std::string_view text, const std::string& path);

// num_nextn_predict_layers of dir/config.json: how many layers for multi-token prediction lie behind the
// model's own. 0 where it says nothing.
int64_t hf_prediction_layers(const std::string& dir);

// The token that begins a text and the tokens that end one, if they are known.
struct TextEnds {
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;

  // As Hugging Face's files have it: null, an id, or a list of several.
  nlohmann::ordered_json eos_token_id() const;
};

// config.json of a finished [model] whose weights are stored as `dtype` (float32, bfloat16 or float16):
// read_hf_config gives the same model. Rotary settings are in the older form (rope_theta, rope_scaling),
// which all versions of transformers read.
nlohmann::ordered_json hf_config(const config::ModelSection& model, at::ScalarType dtype,
                                 const TextEnds& ends);

}  // namespace pptrain::models
