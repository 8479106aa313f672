// The weights of a Hugging Face directory, read at chosen places: what is read is not mapped, so that memory
// does not fill with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/io/files.h"
#include "core/io/hf_checkpoint.h"

namespace pptrain::app {

// A tensor of one of its files.
struct HfStored {
  const io::SafetensorsReader* file = nullptr;
  io::TensorSpec spec;

  std::string describe() const;  // "'FILE': the tensor 'NAME'"
};

class HfSource {
 public:
  // Throws Error as HfCheckpoint does.
  explicit HfSource(const std::filesystem::path& hf_dir) : hf_(hf_dir) {}

  const io::HfCheckpoint& hf() const { return hf_; }
  HfStored find(const std::string& tensor) const;

  // Fills `out` with the tensor's bytes from byte `begin` on.
  void read(const HfStored& tensor, uint64_t begin, std::span<std::byte> out);
  // Whether two tensors are the same type, shape and bytes.
  bool same(const HfStored& a, const HfStored& b);
  // Those that are not in `taken`, file by file. Throws Error where two files have one of the same name.
  std::vector<HfStored> others(const std::set<std::string>& taken) const;

 private:
  io::HfCheckpoint hf_;
  std::optional<io::RegularFile> open_;  // that was read last
};

}  // namespace pptrain::app
