// For the tests in Python. `list FILE` prints metadata and tensors with their bytes in hexadecimal, `copy
// FROM TO` reads a file and writes it anew, `check FILE...` and `verdicts BATCH` print the reader's verdict
// on files.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/io/safetensors.h"
#include "test/fuzz/memory_file.h"

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

std::string hexadecimal(const void* data, size_t size) {
  constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const auto byte : std::span(static_cast<const unsigned char*>(data), size)) {
    text += digits[byte >> 4];
    text += digits[byte & 15];
  }
  return text;
}
std::string hexadecimal(const std::string& text) {
  return hexadecimal(text.data(), text.size());
}

// The contents of a file on one line: its tensors, then its metadata, by name.
std::string contents(const SafetensorsReader& reader) {
  std::map<std::string, std::string> tensors;
  for (const TensorSpec& spec : reader.tensors()) {
    const at::Tensor tensor = reader.view(spec.name);
    std::string shape;
    for (const int64_t dim : tensor.sizes()) shape += std::to_string(dim) + ",";
    tensors[spec.name] = dtype_name(tensor.scalar_type()) + ":" + shape + ":" +
                         hexadecimal(tensor.const_data_ptr(), tensor.nbytes());
  }
  std::string line;
  for (const auto& [name, text] : tensors) line += " " + hexadecimal(name) + ":" + text;
  for (const auto& [key, value] : reader.metadata())
    line += " " + hexadecimal(key) + "=" + hexadecimal(value);
  return line;
}

// BATCH joins many files, each after its length (4 bytes, little-endian). Prints "ok CONTENTS" or "no REASON"
// for each.
void verdicts(const std::string& batch) {
  const MappedFile file(batch);
  std::string_view rest(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  while (!rest.empty()) {
    uint32_t length = 0;
    std::memcpy(&length, rest.data(), sizeof(length));
    const pptrain::fuzz::MemoryFile one(rest.substr(sizeof(length), length));
    rest.remove_prefix(sizeof(length) + length);
    try {
      const std::string line = contents(SafetensorsReader(one.path()));
      std::cout << "ok" << line << "\n";
    } catch (const pptrain::Error& error) {
      std::string reason = error.what();
      std::ranges::replace(reason, '\n', ' ');
      std::cout << "no " << reason << "\n";
    }
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
    } else if (command == "verdicts") {
      verdicts(argv[2]);
    } else if (command == "check") {
      for (int i = 2; i < argc; ++i) check(argv[i]);
    } else {
      std::cerr << "usage: list FILE | copy FROM TO | check FILE... | verdicts BATCH\n";
      return 2;
    }
  } catch (const pptrain::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
