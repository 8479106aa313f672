#include "core/corpus/token_writer.h"

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

fs::path with_suffix(const fs::path& prefix, const std::string& suffix) {
  return prefix.string() + suffix;
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

void rename_over(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error)
    throw Error(fmt::format("cannot rename '{}' to '{}': {}", from.string(), to.string(), error.message()));
}

}  // namespace

TokenWriter::TokenWriter(const fs::path& prefix, int token_bytes, bool overwrite)
    : bin_(with_suffix(prefix, ".bin")),
      idx_(with_suffix(prefix, ".idx")),
      prompts_(with_suffix(prefix, ".prompts")),
      bin_part_(with_suffix(prefix, fmt::format(".bin.part-{}", ::getpid()))),
      idx_part_(with_suffix(prefix, fmt::format(".idx.part-{}", ::getpid()))),
      prompts_part_(with_suffix(prefix, fmt::format(".prompts.part-{}", ::getpid()))),
      token_bytes_(token_bytes) {
  if (!overwrite) {
    require_free(bin_);
    require_free(idx_);
    require_free(prompts_);
  }
  out_ = std::make_unique<io::OutputFile>(bin_part_);
}

TokenWriter::~TokenWriter() {
  if (finished_) return;
  std::error_code ignored;
  fs::remove(bin_part_, ignored);
  fs::remove(idx_part_, ignored);
  fs::remove(prompts_part_, ignored);
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
  io::OutputFile file(idx_part_);
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
  io::OutputFile file(prompts_part_);
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
  // The index comes last and goes first: where it is, the ids and prompts are its own.
  std::error_code ignored;
  fs::remove(idx_, ignored);
  fs::remove(prompts_, ignored);
  rename_over(bin_part_, bin_);
  if (prompts) rename_over(prompts_part_, prompts_);
  rename_over(idx_part_, idx_);
  finished_ = true;
  io::sync_folder(bin_.parent_path());
}

}  // namespace pptrain::corpus
