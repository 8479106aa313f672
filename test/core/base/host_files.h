// Hand-made system files of a host (/proc, /sys).
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "test/core/io/scratch_folder.h"

namespace pptrain::test {

class HostFiles {
 public:
  void write(const std::filesystem::path& file, const std::string& text) {
    std::filesystem::create_directories((folder_.path() / file).parent_path());
    std::ofstream(folder_.path() / file) << text << "\n";
  }
  const std::filesystem::path& root() const { return folder_.path(); }

 private:
  ScratchFolder folder_;
};

}  // namespace pptrain::test
