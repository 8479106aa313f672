#include "core/text/corpus/token_writer.h"

#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>
#include <system_error>

#include "core/base/error.h"
#include "core/data/document_index.h"
#include "core/io/atomic_file.h"

namespace pptrain::corpus {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

// The name of a file while it is written.
fs::path part_of(const fs::path& path) {
  return fmt::format("{}.part-{}", path.string(), ::getpid());
}

template <typename T>
void write_value(io::OutputFile& file, T value) {
  file.write(std::as_bytes(std::span(&value, 1)));
}

void require_free(const fs::path& path) {
  if (!fs::exists(fs::symlink_status(path))) return;
  throw UsageError(
      fmt::format("{} is there already; choose another --out, or --overwrite it", path.string()));
}

void rename_part(const fs::path& path) {
  const fs::path part = part_of(path);
  std::error_code error;
  fs::rename(part, path, error);
  if (error)
    throw Error(fmt::format("cannot rename '{}' to '{}': {}", part.string(), path.string(), error.message()));
}

}  // namespace

TokenWriter::TokenWriter(const fs::path& prefix, int token_bytes, bool overwrite)
    : bin_(prefix.string() + ".bin"),
      idx_(prefix.string() + ".idx"),
      prompts_(prefix.string() + ".prompts"),
      token_bytes_(token_bytes) {
  if (!overwrite) {
    for (const fs::path* path : {&bin_, &idx_, &prompts_}) require_free(*path);
  }
  out_ = std::make_unique<io::OutputFile>(part_of(bin_));
}

TokenWriter::~TokenWriter() {
  if (finished_) return;
  std::error_code ignored;
  for (const fs::path* path : {&bin_, &idx_, &prompts_}) fs::remove(part_of(*path), ignored);
}

void TokenWriter::add(std::span<const int32_t> ids, std::span<const int64_t> lengths,
                      std::span<const tokens::TokenRange> prompts) {
  for (const tokens::TokenRange& prompt : prompts)
    ranges_.push_back({tokens_ + prompt.begin, tokens_ + prompt.end});
  if (token_bytes_ == 2) {
    narrow_.resize(ids.size());
    std::ranges::transform(ids, narrow_.begin(), [](int32_t id) { return static_cast<uint16_t>(id); });
    out_->write(std::as_bytes(std::span(narrow_)));
  } else {
    out_->write(std::as_bytes(ids));
  }
  tokens_ += static_cast<int64_t>(ids.size());
  for (int64_t left : lengths) {
    do {
      const int64_t length = std::min<int64_t>(left, std::numeric_limits<int32_t>::max());
      lengths_.push_back(static_cast<int32_t>(length));
      left -= length;
    } while (left > 0);
    document_ends_.push_back(static_cast<int64_t>(lengths_.size()));
  }
}

void TokenWriter::write_index() {
  io::OutputFile file(part_of(idx_));
  constexpr std::string_view magic("MMIDIDX\0\0", 9);
  file.write(std::as_bytes(std::span(magic)));
  write_value<uint64_t>(file, 1);
  write_value<uint8_t>(file, token_bytes_ == 2 ? 8 : 4);
  write_value<uint64_t>(file, lengths_.size());
  write_value<uint64_t>(file, document_ends_.size() + 1);
  file.write(std::as_bytes(std::span(lengths_)));
  std::vector<int64_t> begins;
  int64_t begin = 0;
  for (const int32_t length : lengths_) {
    begins.push_back(begin);
    begin += int64_t{length} * token_bytes_;
  }
  file.write(std::as_bytes(std::span(begins)));
  write_value<int64_t>(file, 0);
  file.write(std::as_bytes(std::span(document_ends_)));
  file.sync_and_close();
}

void TokenWriter::write_prompts() {
  io::OutputFile file(part_of(prompts_));
  constexpr std::string_view magic("PROMPTS\2", 8);
  file.write(std::as_bytes(std::span(magic)));
  write_value<uint64_t>(file, ranges_.size());
  file.write(std::as_bytes(std::span(ranges_)));
  file.sync_and_close();
}

void TokenWriter::finish() {
  out_->sync_and_close();
  write_index();
  const bool prompts = !ranges_.empty();
  if (prompts) write_prompts();
  // The index comes last and goes first: if it exists, the ids and prompts belong to it.
  std::error_code ignored;
  fs::remove(idx_, ignored);
  fs::remove(prompts_, ignored);
  rename_part(bin_);
  if (prompts) rename_part(prompts_);
  rename_part(idx_);
  finished_ = true;
  io::sync_folder(bin_.parent_path());
}

}  // namespace pptrain::corpus
