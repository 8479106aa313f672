#include "core/data/prompts.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "core/base/error.h"
#include "core/data/microbatch.h"
#include "core/io/mapped_file.h"

namespace pptrain::data {

static_assert(std::endian::native == std::endian::little, "files of prompts are little-endian");

std::filesystem::path prompts_of(const std::filesystem::path& token_file) {
  return std::filesystem::path(token_file).replace_extension(".prompts");
}

std::vector<uint32_t> read_prompt_lengths(const std::filesystem::path& path,
                                          std::span<const int64_t> starts) {
  constexpr std::string_view magic("PROMPTS\1", 8);
  constexpr size_t header_bytes = 16;
  const io::MappedFile file(path);
  const std::span<const std::byte> bytes = file.bytes();
  const auto fail = [&](const std::string& what) {
    throw Error(fmt::format("'{}': {}; make it again with the token file", path.string(), what));
  };
  uint64_t documents = 0;
  if (bytes.size() < header_bytes || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
    fail("it does not begin as a file of prompts' lengths");
  std::memcpy(&documents, bytes.data() + magic.size(), sizeof(documents));
  if (documents != starts.size() - 1 || bytes.size() != header_bytes + 4 * documents) {
    fail(fmt::format("{} documents in {} bytes, but the index has {} documents", documents, bytes.size(),
                     starts.size() - 1));
  }
  std::vector<uint32_t> lengths(documents);
  if (documents > 0) std::memcpy(lengths.data(), bytes.data() + header_bytes, 4 * documents);
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > starts[i + 1] - starts[i]) {
      fail(fmt::format("document {} has a prompt of {} tokens, but {} tokens", i, lengths[i],
                       starts[i + 1] - starts[i]));
    }
  }
  return lengths;
}

Prompts::Prompts(std::span<const int64_t> starts, std::span<const uint32_t> lengths) {
  int64_t before = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 2) continue;
    begins_.push_back(starts[i] + 1);
    ends_.push_back(starts[i] + lengths[i]);
    before_.push_back(before);
    before += ends_.back() - begins_.back();
  }
}

int64_t Prompts::count_before(int64_t position) const {
  const auto after = std::ranges::lower_bound(begins_, position) - begins_.begin();
  if (after == 0) return 0;
  const auto last = static_cast<size_t>(after - 1);
  return before_[last] + std::min(ends_[last], position) - begins_[last];
}

void Prompts::ignore(int64_t first, std::span<int64_t> labels) const {
  const int64_t last = first + static_cast<int64_t>(labels.size());
  auto i = static_cast<size_t>(std::ranges::upper_bound(ends_, first) - ends_.begin());
  for (; i < begins_.size() && begins_[i] < last; ++i) {
    const int64_t begin = std::max(begins_[i], first), end = std::min(ends_[i], last);
    std::fill(labels.begin() + (begin - first), labels.begin() + (end - first), ignore_label);
  }
}

}  // namespace pptrain::data
