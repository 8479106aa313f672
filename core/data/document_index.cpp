#include "core/data/document_index.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/data/microbatch.h"
#include "core/io/mapped_file.h"

namespace pptrain::data {

namespace {

static_assert(std::endian::native == std::endian::little, "indices and prompts are little-endian");

constexpr std::string_view magic{"MMIDIDX\0\0", 9};
constexpr uint64_t known_version = 1;
constexpr size_t header_bytes = magic.size() + 8 + 1 + 8 + 8;

struct Type {
  std::string_view name;
  int bytes;  // 0: refused
};
// By their code; 0 is none.
constexpr std::array<Type, 9> types{{{"none", 0},
                                     {"uint8", 1},
                                     {"int8", 0},
                                     {"int16", 0},
                                     {"int32", 4},
                                     {"int64", 0},
                                     {"float64", 0},
                                     {"float32", 0},
                                     {"uint16", 2}}};

// The tables of an index, which need not be aligned.
class Tables {
 public:
  explicit Tables(const io::MappedFile& file) : path_(file.path().string()), bytes_(file.bytes()) {
    if (bytes_.size() < header_bytes)
      fail(fmt::format("{} bytes are too few for the header of {}", bytes_.size(), header_bytes));
    if (std::memcmp(bytes_.data(), magic.data(), magic.size()) != 0)
      fail("it does not begin with MMIDIDX: it is no index of Megatron's");
    if (const auto version = at<uint64_t>(magic.size()); version != known_version)
      fail(fmt::format("version {}, but only {} is known", version, known_version));
    const size_t code = at<uint8_t>(magic.size() + 8);
    token_bytes_ = code < types.size() ? types[code].bytes : 0;
    if (token_bytes_ == 0) {
      fail(fmt::format("ids of type {}{}; those of a tokenizer are uint8 (1), int32 (4) or uint16 (8)", code,
                       code < types.size() ? fmt::format(" ({})", types[code].name) : ""));
    }
    sequences_ = at<uint64_t>(magic.size() + 9);
    entries_ = at<uint64_t>(magic.size() + 17);
    check_size();
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("'{}': {}; make the index again with the token file", path_, what));
  }

  int token_bytes() const { return token_bytes_; }
  uint64_t sequences() const { return sequences_; }
  uint64_t entries() const { return entries_; }
  int32_t length(uint64_t i) const { return at<int32_t>(header_bytes + 4 * i); }
  int64_t pointer(uint64_t i) const { return at<int64_t>(header_bytes + 4 * sequences_ + 8 * i); }
  int64_t document(uint64_t i) const { return at<int64_t>(header_bytes + 12 * sequences_ + 8 * i); }

 private:
  template <typename T>
  T at(size_t offset) const {
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  // Counts that a file of this size cannot hold are found before they are multiplied.
  void check_size() const {
    const uint64_t size = bytes_.size();
    const bool possible = sequences_ <= size / 12 && entries_ <= size / 8;
    if (!possible || header_bytes + 12 * sequences_ + 8 * entries_ != size) {
      fail(fmt::format("the header promises {} sequences and {} entries of documents, the file has {} bytes",
                       sequences_, entries_, size));
    }
  }

  std::string path_;
  std::span<const std::byte> bytes_;
  int token_bytes_ = 0;
  uint64_t sequences_ = 0, entries_ = 0;
};

// Tokens before each sequence, and of all.
std::vector<int64_t> sequence_starts(const Tables& tables, uint64_t token_file_bytes) {
  std::vector<int64_t> starts{0};
  starts.reserve(tables.sequences() + 1);
  for (uint64_t i = 0; i < tables.sequences(); ++i) {
    const int32_t length = tables.length(i);
    if (length < 0) tables.fail(fmt::format("sequence {} has {} tokens", i, length));
    const int64_t expected = starts.back() * tables.token_bytes();
    if (tables.pointer(i) != expected) {
      tables.fail(
          fmt::format("sequence {} begins at byte {} of the token file, but the one before it ends at {}", i,
                      tables.pointer(i), expected));
    }
    starts.push_back(starts.back() + length);
  }
  const auto bytes = static_cast<uint64_t>(starts.back()) * static_cast<uint64_t>(tables.token_bytes());
  if (bytes != token_file_bytes) {
    tables.fail(fmt::format("its sequences have {} tokens ({} bytes), but the token file has {} bytes",
                            starts.back(), bytes, token_file_bytes));
  }
  return starts;
}

}  // namespace

std::filesystem::path index_of(const std::filesystem::path& token_file) {
  return std::filesystem::path(token_file).replace_extension(".idx");
}

DocumentIndex read_document_index(const std::filesystem::path& path, uint64_t token_file_bytes) {
  const io::MappedFile file(path);
  const Tables tables(file);
  const std::vector<int64_t> sequences = sequence_starts(tables, token_file_bytes);
  DocumentIndex index{.token_bytes = tables.token_bytes(), .starts = {0}};
  const auto last = static_cast<int64_t>(tables.sequences());
  for (uint64_t i = 0; i < tables.entries(); ++i) {
    const int64_t sequence = tables.document(i);
    const int64_t before = i == 0 ? 0 : tables.document(i - 1);
    if (sequence < before || sequence > last || (i == 0 && sequence != 0)) {
      tables.fail(fmt::format("document {} begins with sequence {}, which should be {}", i, sequence,
                              i == 0 ? "0" : fmt::format("from {} to {}", before, last)));
    }
    const int64_t start = sequences[static_cast<size_t>(sequence)];
    if (start != index.starts.back()) index.starts.push_back(start);
  }
  const int64_t end = tables.entries() == 0 ? 0 : tables.document(tables.entries() - 1);
  if (end != last) {
    tables.fail(fmt::format("its documents end with sequence {}, but there are {}", end, last));
  }
  return index;
}

std::filesystem::path prompts_of(const std::filesystem::path& token_file) {
  return std::filesystem::path(token_file).replace_extension(".prompts");
}

namespace {

// The numbers of a file of prompts, as they stand there.
class PromptsFile {
 public:
  PromptsFile(const std::filesystem::path& path, std::span<const int64_t> starts)
      : file_(path), starts_(starts) {}

  std::vector<tokens::TokenRange> read() const {
    constexpr std::string_view magic("PROMPTS");
    const std::span<const std::byte> bytes = file_.bytes();
    if (bytes.size() < header_bytes || std::memcmp(bytes.data(), magic.data(), magic.size()) != 0)
      fail("it does not begin as a file of prompts");
    const auto version = static_cast<int>(bytes[magic.size()]);
    if (version == 1) return first_prompts();
    if (version == 2) return all_prompts();
    fail(fmt::format("version {}, but only 1 and 2 are known", version));
  }

 private:
  static constexpr size_t header_bytes = 16;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("'{}': {}; make it again with the token file", file_.path().string(), what));
  }

  template <typename T>
  std::vector<T> numbers(uint64_t count) const {
    const std::span<const std::byte> body = file_.bytes().subspan(header_bytes);
    if (count > body.size() || body.size() != count * sizeof(T))
      fail(fmt::format("the header promises {} numbers of {} bytes, the file has {} bytes", count, sizeof(T),
                       file_.bytes().size()));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), body.data(), body.size());
    return values;
  }

  uint64_t count() const {
    uint64_t value = 0;
    std::memcpy(&value, file_.bytes().data() + 8, sizeof(value));
    return value;
  }

  std::vector<tokens::TokenRange> first_prompts() const {
    const std::vector<uint32_t> lengths = numbers<uint32_t>(count());
    if (lengths.size() != starts_.size() - 1)
      fail(fmt::format("{} documents, but the index has {}", lengths.size(), starts_.size() - 1));
    std::vector<tokens::TokenRange> prompts;
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (lengths[i] > starts_[i + 1] - starts_[i])
        fail(fmt::format("document {} has a prompt of {} tokens, but {} tokens", i, lengths[i],
                         starts_[i + 1] - starts_[i]));
      if (lengths[i] >= 2) prompts.push_back({starts_[i] + 1, starts_[i] + lengths[i]});
    }
    return prompts;
  }

  std::vector<tokens::TokenRange> all_prompts() const {
    if (count() > file_.bytes().size()) fail(fmt::format("the header promises {} prompts", count()));
    const std::vector<int64_t> places = numbers<int64_t>(2 * count());
    std::vector<tokens::TokenRange> prompts;
    int64_t last = 0;
    for (size_t i = 0; i < places.size(); i += 2) {
      tokens::TokenRange prompt{places[i], places[i + 1]};
      const auto behind = std::ranges::upper_bound(starts_, prompt.begin);
      if (prompt.begin < last || prompt.end <= prompt.begin || behind == starts_.end() ||
          prompt.end > *behind)
        fail(fmt::format(
            "prompt {} has the tokens [{}, {}), which lie in no document behind the prompt before", i / 2,
            prompt.begin, prompt.end));
      last = prompt.end;
      if (prompt.begin == *(behind - 1)) ++prompt.begin;
      if (prompt.begin < prompt.end) prompts.push_back(prompt);
    }
    return prompts;
  }

  io::MappedFile file_;
  std::span<const int64_t> starts_;
};

}  // namespace

std::vector<tokens::TokenRange> read_prompts(const std::filesystem::path& path,
                                             std::span<const int64_t> starts) {
  return PromptsFile(path, starts).read();
}

Prompts::Prompts(std::vector<tokens::TokenRange> prompts) : prompts_(std::move(prompts)) {
  int64_t before = 0;
  for (const tokens::TokenRange& prompt : prompts_) {
    before_.push_back(before);
    before += prompt.length();
  }
}

int64_t Prompts::count_before(int64_t position) const {
  const auto after = std::ranges::lower_bound(prompts_, position, {}, &tokens::TokenRange::begin);
  if (after == prompts_.begin()) return 0;
  const tokens::TokenRange& last = *(after - 1);
  return before_[static_cast<size_t>(after - prompts_.begin()) - 1] + std::min(last.end, position) -
         last.begin;
}

void Prompts::ignore(int64_t first, std::span<int64_t> labels) const {
  const int64_t last = first + static_cast<int64_t>(labels.size());
  auto prompt = std::ranges::upper_bound(prompts_, first, {}, &tokens::TokenRange::end);
  for (; prompt != prompts_.end() && prompt->begin < last; ++prompt) {
    const int64_t begin = std::max(prompt->begin, first), end = std::min(prompt->end, last);
    std::fill(labels.begin() + (begin - first), labels.begin() + (end - first), ignore_label);
  }
}

}  // namespace pptrain::data
