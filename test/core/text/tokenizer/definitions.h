// The definitions that train_definitions.py made.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/text/tokenizer/tokenizer.h"
#include "test/support/paths.h"

namespace pptrain::tokenizer {

inline std::filesystem::path definition(const std::string& name) {
  return test::source_dir() / "test/core/text/tokenizer/definitions" / name / "tokenizer.json";
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace pptrain::tokenizer
