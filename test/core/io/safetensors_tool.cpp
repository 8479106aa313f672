// For python_safetensors_test.py: `list FILE` prints metadata and tensors with their bytes in hexadecimal,
// `copy FROM TO` reads a file and writes it anew.
#include <iostream>
#include <string>

#include "core/base/error.h"
#include "core/io/safetensors.h"

using namespace pptrain::io;

namespace {

void list(const SafetensorsReader& reader) {
  for (const auto& [key, value] : reader.metadata()) std::cout << "metadata " << key << " " << value << "\n";
  for (const TensorSpec& spec : reader.tensors()) {
    const at::Tensor tensor = reader.view(spec.name);
    std::cout << "tensor " << spec.name << " " << dtype_name(tensor.scalar_type()) << " ";
    for (const int64_t dim : tensor.sizes()) std::cout << dim << ",";
    std::cout << " ";
    const auto* bytes = static_cast<const unsigned char*>(tensor.const_data_ptr());
    constexpr char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < tensor.nbytes(); ++i) std::cout << digits[bytes[i] >> 4] << digits[bytes[i] & 15];
    std::cout << "\n";
  }
}

void copy(const SafetensorsReader& reader, const std::string& to) {
  SafetensorsWriter writer(to, reader.tensors(), reader.metadata());
  for (const TensorSpec& spec : reader.tensors()) writer.write(spec.name, reader.view(spec.name));
  writer.finish();
}

void check(const std::string& path) {
  try {
    const SafetensorsReader reader(path);
    std::cout << "ok\n";
  } catch (const pptrain::Error& error) {
    std::cout << error.what() << "\n";
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string command = argc > 2 ? argv[1] : "";
    if (command == "list") {
      list(SafetensorsReader(argv[2]));
    } else if (command == "copy" && argc > 3) {
      copy(SafetensorsReader(argv[2]), argv[3]);
    } else if (command == "check") {
      for (int i = 2; i < argc; ++i) check(argv[i]);
    } else {
      std::cerr << "usage: list FILE | copy FROM TO | check FILE...\n";
      return 2;
    }
  } catch (const pptrain::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
