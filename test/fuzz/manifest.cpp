#include "parallel/checkpoint/manifest.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/paths.h"
#include "parallel/checkpoint/verify.h"
#include "test/fuzz/targets.h"

namespace pptrain::fuzz {
namespace {

using nlohmann::json;

constexpr int64_t most_elements = 1 << 20;  // limit for checking slices one by one

bool is_small(const checkpoint::FileEntry& file) {
  int64_t elements = 0;
  for (const auto& [name, tensor] : file.tensors) {
    if (tensor.slice.numel() > most_elements - elements) return false;
    elements += tensor.slice.numel();
  }
  return true;
}

void look_at(const std::vector<checkpoint::FileEntry>& files) {
  for (const checkpoint::FileEntry& file : files) {
    const std::filesystem::path path = file.path();
    require(std::distance(path.begin(), path.end()) == 2 && path.filename() != "..",
            "a file of the manifest leads out of its folder");
    for (const auto& [name, tensor] : file.tensors) {
      require(tensor.slice.numel() >= 0, "a slice has a negative number of elements");
      checkpoint::describe(tensor.dtype, tensor.stored_shape());
    }
  }
  // In the program the files' sizes have already proven the slices' sizes.
  if (std::ranges::all_of(files, is_small)) checkpoint::coverage_problems(files);
}

bool read_manifest(const std::string& text) {
  checkpoint::Manifest manifest;
  try {
    manifest = checkpoint::parse_manifest(text, "manifest");
  } catch (const Error&) {
    return false;
  }
  look_at(manifest.files);
  for (const checkpoint::Attachment& attached : manifest.attachments)
    require(io::is_inner_path(attached.path), "an attachment of the manifest leads out of its folder");
  const std::string written = checkpoint::to_text(manifest);
  require(checkpoint::to_text(checkpoint::parse_manifest(written, "manifest")) == written,
          "a manifest reads back as another");
  return true;
}

// A valid checksum lets the fuzzer reach everything that an attacker can write.
std::string with_checksum(json document) {
  constexpr const char* own = "manifest_xxh3_128";
  document.erase(own);
  const std::string text = document.dump();
  document[own] = io::checksum_hex(std::as_bytes(std::span(text)));
  return document.dump();
}

}  // namespace

bool manifest(std::string_view input) {
  const std::string text(input);
  bool accepted = read_manifest(text);
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_object()) accepted |= read_manifest(with_checksum(document));
  try {
    look_at(checkpoint::parse_files(text));
    return true;
  } catch (const Error&) {
    return accepted;
  }
}

}  // namespace pptrain::fuzz
