#include "parallel/checkpoint/manifest.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/files.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"

namespace pptrain::checkpoint {

using nlohmann::json;

namespace {

constexpr int max_parts = 99999;
constexpr int64_t max_count = int64_t{1} << 62;  // so that a run can go on counting

// Checks shapes of outside files, before anything is computed with them.
void check_shape(const std::vector<int64_t>& shape) {
  constexpr int64_t max_elements = std::numeric_limits<int64_t>::max() / 16;  // of the largest type
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0 || (size > 0 && elements > max_elements / size)) {
      throw Error(fmt::format("[{}] cannot be the shape of a tensor", fmt::join(shape, ", ")));
    }
    elements *= size;
  }
}

// A number of parts, or one that check_file_name refuses.
int bounded(int64_t parts) {
  return static_cast<int>(std::clamp<int64_t>(parts, 0, max_parts + 1));
}

constexpr int64_t lowest = std::numeric_limits<int64_t>::min(), highest = std::numeric_limits<int64_t>::max();

// An integer from 0.
int64_t number(const json& object, const char* key, int64_t max = highest) {
  return io::integer_from(object.at(key), 0, max, fmt::format("'{}'", key));
}

// An integer from 0, all 64 bits.
uint64_t bits(const json& object, const char* key) {
  const json& value = object.at(key);
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  throw Error(fmt::format("'{}': {} is not an integer from 0", key, value.dump()));
}

double finite(const json& value, const char* key) {
  if (value.is_number() && std::isfinite(value.get<double>())) return value.get<double>();
  throw Error(fmt::format("'{}': {} is not a number", key, value.dump()));
}

// An integer of a shape or a slice; their own checks refuse negative ones.
int64_t any_number(const json& value, const char* key) {
  return io::integer_from(value, lowest, highest, fmt::format("'{}'", key));
}

std::vector<int64_t> numbers(const json& object, const char* key) {
  std::vector<int64_t> result;
  for (const json& value : object.at(key).get_ref<const json::array_t&>())
    result.push_back(any_number(value, key));
  return result;
}

TensorEntry parse_tensor(const json& j) {
  TensorEntry t;
  j.at("dtype").get_to(t.dtype);
  j.at("xxh3_128").get_to(t.checksum);
  const std::vector<int64_t> shape = numbers(j, "shape");
  check_shape(shape);
  t.slice = nn::whole_slice(shape);
  if (const auto slice = j.find("slice"); slice != j.end()) {
    t.slice.offset = numbers(*slice, "offset");
    t.slice.box = numbers(*slice, "box");
    t.slice.begin = any_number(slice->at("begin"), "begin");
    t.slice.end = any_number(slice->at("end"), "end");
    nn::check_slice(t.slice);
  }
  return t;
}

}  // namespace

// Found by nlohmann::json through their namespace.
void to_json(json& j, const TensorEntry& t) {
  j = {{"dtype", t.dtype}, {"shape", t.slice.global}, {"xxh3_128", t.checksum}};
  if (t.slice.is_whole()) return;
  j["slice"] = {
      {"offset", t.slice.offset}, {"box", t.slice.box}, {"begin", t.slice.begin}, {"end", t.slice.end}};
}
void to_json(json& j, const FileEntry& f) {
  j = {{"stage", f.stage}, {"file", f.file}, {"bytes", f.bytes}, {"tensors", f.tensors}};
  if (f.parts == 1) return;
  j["part"] = f.part + 1;  // as in the file's name
  j["parts"] = f.parts;
}
void from_json(const json& j, FileEntry& f) {
  f.stage = static_cast<int>(number(j, "stage", std::numeric_limits<int>::max()));
  j.at("file").get_to(f.file);
  f.bytes = static_cast<uint64_t>(number(j, "bytes"));
  if (j.contains("part")) f.part = bounded(number(j, "part")) - 1;
  if (j.contains("parts")) f.parts = bounded(number(j, "parts"));
  check_file_name(f);
  for (const auto& [name, tensor] : j.at("tensors").get_ref<const json::object_t&>()) {
    try {
      f.tensors[name] = parse_tensor(tensor);
    } catch (const Error& error) {
      throw Error(fmt::format("the tensor '{}' of {}: {}", name, f.path().string(), error.what()));
    }
  }
}
void to_json(json& j, const Attachment& a) {
  j = {{"path", a.path}, {"bytes", a.bytes}, {"xxh3_128", a.checksum}};
}
void from_json(const json& j, Attachment& a) {
  j.at("path").get_to(a.path);
  a.bytes = static_cast<uint64_t>(number(j, "bytes"));
  j.at("xxh3_128").get_to(a.checksum);
  if (!io::is_inner_path(a.path)) {
    throw Error(fmt::format("'{}' is not the path of a file below the checkpoint's folder", a.path));
  }
}
void to_json(json& j, const RunState& s) {
  j = {{"step", s.step},
       {"optimizer_step", s.optimizer_step},
       {"next_sample", s.next_sample},
       {"tokens", s.tokens},
       {"skipped", s.skipped},
       {"skipped_in_a_row", s.skipped_in_a_row},
       {"seed", s.seed}};
  if (s.validation_loss) j["validation_loss"] = *s.validation_loss;
  if (s.recent_losses.empty()) return;
  j["recent_losses"] = s.recent_losses;
  j["losses_above"] = s.losses_above;
  j["above_since"] = s.above_since;
}
void from_json(const json& j, RunState& s) {
  s.step = number(j, "step", max_count);
  s.optimizer_step = number(j, "optimizer_step", max_count);
  s.next_sample = number(j, "next_sample", max_count);
  s.tokens = number(j, "tokens", max_count);
  s.skipped = number(j, "skipped", max_count);
  s.skipped_in_a_row = number(j, "skipped_in_a_row", max_count);
  s.seed = bits(j, "seed");
  // Older checkpoints have none of these.
  if (j.contains("validation_loss")) s.validation_loss = finite(j.at("validation_loss"), "validation_loss");
  if (!j.contains("recent_losses")) return;
  for (const json& loss : j.at("recent_losses").get_ref<const json::array_t&>())
    s.recent_losses.push_back(finite(loss, "recent_losses"));
  s.losses_above = number(j, "losses_above", max_count);
  s.above_since = number(j, "above_since", max_count);
}

namespace {

constexpr const char* format_name = "pptrain checkpoint";
constexpr int format_version = 2;
constexpr int oldest_version = 1;
constexpr const char* own_checksum = "manifest_xxh3_128";

// The checksum of everything else in the manifest, in a form that does not depend on white space.
std::string checksum_without_own(json document) {
  document.erase(own_checksum);
  const std::string text = document.dump();
  return io::checksum_hex(std::as_bytes(std::span(text)));
}

Manifest parse(const json& document) {
  if (!document.is_object() || document.value("format", "") != format_name) {
    throw Error("not the manifest of a checkpoint");
  }
  const int64_t version = number(document, "version");
  if (version < oldest_version || version > format_version) {
    throw Error(fmt::format("version {} of the format; this program reads versions {} to {}", version,
                            oldest_version, format_version));
  }
  if (document.value(own_checksum, "") != checksum_without_own(document)) {
    throw Error("its checksum is wrong; it is damaged");
  }
  Manifest manifest;
  document.at("state").get_to(manifest.state);
  document.at("layout").get_to(manifest.layout);
  document.at("job").get_to(manifest.job_toml);
  document.at("files").get_to(manifest.files);
  if (document.contains("attachments")) document.at("attachments").get_to(manifest.attachments);
  if (document.contains("given")) document.at("given").get_to(manifest.given_toml);
  return manifest;
}

}  // namespace

std::vector<int64_t> TensorEntry::stored_shape() const {
  return slice.covers_box() ? slice.box : std::vector{slice.numel()};
}

std::filesystem::path FileEntry::path() const {
  const std::string numbered = parts == 1 ? file : fmt::format("{}.{:05}-of-{:05}", file, part + 1, parts);
  return std::filesystem::path(fmt::format("stage_{}", stage)) / (numbered + ".safetensors");
}

bool Manifest::weights_alone() const {
  return state.step == 0 &&
         std::ranges::all_of(files, [](const FileEntry& entry) { return entry.file == model_file; });
}

std::string to_text(const Manifest& manifest) {
  json document = {{"format", format_name},     {"version", format_version}, {"state", manifest.state},
                   {"layout", manifest.layout}, {"job", manifest.job_toml},  {"files", manifest.files}};
  try {
    if (!manifest.attachments.empty()) document["attachments"] = manifest.attachments;
    if (!manifest.given_toml.empty()) document["given"] = manifest.given_toml;
    document[own_checksum] = checksum_without_own(document);
    return document.dump(1) + "\n";
  } catch (const json::exception& error) {
    throw Error(fmt::format("checkpoint: the job or a name is not UTF-8 text: {}", error.what()));
  }
}

std::string to_text(const std::vector<FileEntry>& files) {
  try {
    return json(files).dump();
  } catch (const json::exception& error) {
    throw Error(fmt::format("checkpoint: a name is not UTF-8 text: {}", error.what()));
  }
}

std::vector<FileEntry> parse_files(const std::string& text) {
  const std::string what = "checkpoint: a rank's list of files";
  const json document = io::parse_strict_json(text, what);
  try {
    return document.get<std::vector<FileEntry>>();
  } catch (const json::exception& error) {
    throw Error(fmt::format("{}: {}", what, error.what()));
  }
}

Manifest read_manifest(const std::filesystem::path& step_dir) {
  const std::filesystem::path path = step_dir / manifest_name;
  const std::string what = fmt::format("'{}'", path.string());
  // Read, not mapped: a bad sector is then an error of this checkpoint, and the search goes on with an older
  // one.
  return parse_manifest(io::read_small_file(path, std::numeric_limits<size_t>::max()), what);
}

Manifest parse_manifest(std::string_view text, const std::string& what) {
  const json document = io::parse_strict_json(text, what);
  try {
    return parse(document);
  } catch (const std::exception& error) {  // Error or json::exception
    throw Error(fmt::format("{}: {}", what, error.what()));
  }
}

void check_attachment(const std::filesystem::path& step_dir, const Attachment& entry) {
  const std::filesystem::path path = io::inner_path(step_dir, entry.path);
  if (io::file_checksum(path) == entry.checksum) return;
  throw Unusable(fmt::format("'{}' is damaged (its checksum is not the manifest's)", path.string()));
}

void check_file_name(const FileEntry& entry) {
  const std::string& name = entry.file;
  if (name.find('\0') != std::string::npos) throw Error("a name with a NUL cannot be the name of a file");
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos) {
    throw Error(fmt::format("'{}' cannot be the name of a file", name));
  }
  if (entry.part < 0 || entry.part >= entry.parts || entry.parts > max_parts) {
    throw Error(fmt::format("'{}': part {} of {} parts; they count from 0 and are {} at most", name,
                            entry.part, entry.parts, max_parts));
  }
}

std::string describe(const std::string& dtype, const std::vector<int64_t>& shape) {
  return fmt::format("{} [{}]", dtype, fmt::join(shape, ", "));
}

}  // namespace pptrain::checkpoint
