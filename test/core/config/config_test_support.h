// A small valid job, its files in a temporary folder, and the message with which a job is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/config/loader.h"
#include "test/support/catch.h"

namespace pptrain::config::test {

// Each test's own folder with a data file; removed at the end.
class Folder {
 public:
  Folder() {
    path_ = std::filesystem::temp_directory_path() / ("pptrain-config-" + std::to_string(counter()++) + "-" +
                                                      std::to_string(reinterpret_cast<uintptr_t>(this)));
    std::filesystem::create_directories(path_);
    write("data.txt", "To be, or not to be");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }
  std::string path(const std::string& name = "") const { return (path_ / name).string(); }
  std::string data() const { return path("data.txt"); }

 private:
  static int& counter() {
    static int count = 0;
    return count;
  }
  std::filesystem::path path_;
};

using pptrain::test::contains_text;

using Overrides = std::vector<std::string>;

inline JobConfig parse(const std::string& text, const Overrides& overrides = {}, const Hooks& hooks = {}) {
  return parse_job(text, "job.toml", overrides, hooks);
}

// The message of the UsageError, or "" if the job is accepted.
inline std::string refusal(const std::string& text, const Overrides& overrides = {},
                           const Hooks& hooks = {}) {
  try {
    parse(text, overrides, hooks);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

// The keys that every job needs, as overrides, so that a test's own text starts at line 1.
inline Overrides essentials(const Folder& folder) {
  return {"data.path=" + folder.data(),  "train.seq_len=16",     "model.hidden_size=64",
          "model.intermediate_size=128", "model.vocab_size=256", "model.num_hidden_layers=4",
          "model.num_attention_heads=4"};
}

}  // namespace pptrain::config::test
