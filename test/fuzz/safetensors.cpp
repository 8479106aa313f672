#include "core/io/safetensors.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "test/fuzz/memory_file.h"
#include "test/fuzz/targets.h"

namespace pptrain::fuzz {
namespace {

std::optional<io::SafetensorsReader> open(const MemoryFile& file) {
  try {
    return io::SafetensorsReader(file.path());
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool safetensors(std::string_view bytes) {
  const MemoryFile file(bytes);
  const auto reader = open(file);
  if (!reader) return false;
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::string_view data = bytes.substr(sizeof(header) + header);
  for (const io::TensorSpec& spec : reader->tensors()) {
    const at::Tensor tensor = reader->view(spec.name);
    require(tensor.sizes() == at::IntArrayRef(spec.shape) && tensor.scalar_type() == spec.dtype,
            spec.name + " is not as its header says");
    require(tensor.nbytes() <= data.size(), spec.name + " reaches beyond the file");
    require(tensor.nbytes() == 0 || std::memcmp(tensor.const_data_ptr(), data.data(), tensor.nbytes()) == 0,
            spec.name + " has other bytes than the file");
    data.remove_prefix(tensor.nbytes());
  }
  require(data.empty(), "bytes of the file belong to no tensor");
  return true;
}

}  // namespace pptrain::fuzz
