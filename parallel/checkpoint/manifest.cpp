#include "parallel/checkpoint/manifest.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/mapped_file.h"
#include "core/io/strict_json.h"

namespace pptrain::checkpoint {

using nlohmann::json;

// Found by nlohmann::json through their namespace.
void to_json(json& j, const TensorEntry& t) {
  j = {{"dtype", t.dtype}, {"shape", t.shape}, {"xxh3_128", t.checksum}};
}
void from_json(const json& j, TensorEntry& t) {
  j.at("dtype").get_to(t.dtype);
  j.at("shape").get_to(t.shape);
  j.at("xxh3_128").get_to(t.checksum);
}
void to_json(json& j, const FileEntry& f) {
  j = {{"stage", f.stage}, {"file", f.file}, {"bytes", f.bytes}, {"tensors", f.tensors}};
}
void from_json(const json& j, FileEntry& f) {
  j.at("stage").get_to(f.stage);
  j.at("file").get_to(f.file);
  j.at("bytes").get_to(f.bytes);
  j.at("tensors").get_to(f.tensors);
  check_file_name(f.file);
}
void to_json(json& j, const RunState& s) {
  j = {{"step", s.step},
       {"optimizer_step", s.optimizer_step},
       {"next_sample", s.next_sample},
       {"tokens", s.tokens},
       {"skipped", s.skipped},
       {"skipped_in_a_row", s.skipped_in_a_row},
       {"seed", s.seed}};
}
void from_json(const json& j, RunState& s) {
  j.at("step").get_to(s.step);
  j.at("optimizer_step").get_to(s.optimizer_step);
  j.at("next_sample").get_to(s.next_sample);
  j.at("tokens").get_to(s.tokens);
  j.at("skipped").get_to(s.skipped);
  j.at("skipped_in_a_row").get_to(s.skipped_in_a_row);
  j.at("seed").get_to(s.seed);
}

namespace {

constexpr const char* format_name = "pptrain checkpoint";
constexpr int format_version = 1;
constexpr const char* own_checksum = "manifest_xxh3_128";

// Of everything else in the manifest, in a form that does not depend on white space.
std::string checksum_without_own(json document) {
  document.erase(own_checksum);
  const std::string text = document.dump();
  return io::checksum_hex(std::as_bytes(std::span(text)));
}

Manifest parse(const json& document, const std::string& what) {
  if (!document.is_object() || document.value("format", "") != format_name) {
    throw Error(what + ": not the manifest of a checkpoint");
  }
  if (document.value("version", 0) != format_version) {
    throw Error(fmt::format("{}: version {} of the format; this program reads version {}", what,
                            document.value("version", 0), format_version));
  }
  if (document.value(own_checksum, "") != checksum_without_own(document)) {
    throw Error(what + ": its checksum is wrong; it is damaged");
  }
  Manifest manifest;
  document.at("state").get_to(manifest.state);
  document.at("layout").get_to(manifest.layout);
  document.at("job").get_to(manifest.job_toml);
  document.at("files").get_to(manifest.files);
  check_names_differ(manifest.files);
  return manifest;
}

}  // namespace

std::filesystem::path FileEntry::path() const {
  return std::filesystem::path(fmt::format("stage_{}", stage)) / (file + ".safetensors");
}

std::string to_text(const Manifest& manifest) {
  json document = {{"format", format_name},     {"version", format_version}, {"state", manifest.state},
                   {"layout", manifest.layout}, {"job", manifest.job_toml},  {"files", manifest.files}};
  try {
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
  return io::parse_strict_json(text, "checkpoint: a rank's list of files").get<std::vector<FileEntry>>();
}

Manifest read_manifest(const std::filesystem::path& step_dir) {
  const std::filesystem::path path = step_dir / manifest_name;
  const std::string what = fmt::format("'{}'", path.string());
  const io::MappedFile file(path);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  const json document = io::parse_strict_json(text, what);
  try {
    return parse(document, what);
  } catch (const json::exception& error) {
    throw Error(fmt::format("{}: {}", what, error.what()));
  }
}

void check_names_differ(const std::vector<FileEntry>& files) {
  std::map<std::pair<std::string, std::string>, int> stage_of;
  for (const FileEntry& file : files) {
    for (const auto& [name, tensor] : file.tensors) {
      const auto [found, added] = stage_of.emplace(std::pair(file.file, name), file.stage);
      if (!added) {
        throw Error(fmt::format("checkpoint: the tensor '{}' of {} is on stage {} and on stage {}", name,
                                file.file, found->second, file.stage));
      }
    }
  }
}

void check_file_name(const std::string& name) {
  const bool good = !name.empty() && name.front() != '.' && name.find('/') == std::string::npos;
  if (!good) throw Error(fmt::format("checkpoint: '{}' cannot be the name of a file", name));
}

}  // namespace pptrain::checkpoint
