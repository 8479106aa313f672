#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/base/error.h"
#include "core/data/token_dataset.h"
#include "test/fuzz/memory_file.h"
#include "test/fuzz/targets.h"

namespace pptrain::fuzz {
namespace {

constexpr int64_t vocabulary = 50257;

std::optional<data::TokenDataset> open(const data::Source& source) {
  try {
    return data::TokenDataset(source, vocabulary);
  } catch (const Error&) {
    return std::nullopt;
  }
}

void read(const data::TokenDataset& tokens) {
  std::vector<int64_t> ids(static_cast<size_t>(tokens.size()));
  try {
    tokens.read(0, ids);
  } catch (const Error&) {  // an id beyond the vocabulary
    return;
  }
  require(std::ranges::all_of(ids, [](int64_t id) { return id >= 0 && id < vocabulary; }),
          "a token is not of the vocabulary");
}

}  // namespace

bool token_file(std::string_view bytes) {
  const MemoryFile file(bytes);
  bool accepted = false;
  for (const data::Format format :
       {data::Format::text, data::Format::bin, data::Format::llmc, data::Format::npy}) {
    for (const int token_bytes : {2, 4}) {
      const auto tokens = open({.paths = {file.path()}, .format = format, .token_bytes = token_bytes});
      if (!tokens) continue;
      read(*tokens);
      accepted |= format == data::Format::llmc || format == data::Format::npy;
    }
  }
  return accepted;  // by one of the formats that can refuse
}

}  // namespace pptrain::fuzz
