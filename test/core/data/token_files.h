// Token files for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "test/core/io/scratch_folder.h"

template <typename Id>
std::filesystem::path write_ids(const ScratchFolder& folder, const std::string& name,
                                const std::vector<Id>& ids, const std::string& before = "") {
  const std::string bytes(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id));
  return folder.write(name, before + bytes);
}

inline std::string llmc_header(int32_t magic, int32_t version, int32_t count) {
  std::vector<int32_t> header(256, 0);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  return {reinterpret_cast<const char*>(header.data()), header.size() * sizeof(int32_t)};
}
