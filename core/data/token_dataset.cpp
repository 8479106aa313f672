#include "core/data/token_dataset.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/base/source_files.h"
#include "core/base/split_mix.h"
#include "core/data/document_index.h"
#include "core/data/npy_header.h"
#include "core/io/paths.h"

namespace pptrain::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr size_t llmc_header_ints = 256;
struct LlmcVariant {
  int32_t magic;
  int32_t version;
  int token_bytes;
};
constexpr std::array llmc_variants{LlmcVariant{20240520, 1, 2}, LlmcVariant{20240801, 7, 4}};

// Null if there is none.
const LlmcVariant* find_variant(int32_t magic, int32_t version) {
  const auto found = std::ranges::find_if(
      llmc_variants, [&](const LlmcVariant& v) { return v.magic == magic && v.version == version; });
  return found == llmc_variants.end() ? nullptr : &*found;
}

// Throws Error unless the file is a header and the ids that it promises. Returns the bytes of an id.
int read_llmc_header(const io::MappedFile& file) {
  std::array<int32_t, llmc_header_ints> header{};
  const auto bytes = file.bytes();
  const std::string path = file.path().string();
  if (bytes.size() < sizeof(header)) {
    throw Error(
        fmt::format("'{}': {} bytes are too few for llm.c's header of {}; is it a headerless file "
                    "(data.format = \"bin\")?",
                    path, bytes.size(), sizeof(header)));
  }
  std::memcpy(header.data(), bytes.data(), sizeof(header));
  const LlmcVariant* const variant = find_variant(header[0], header[1]);
  if (variant == nullptr) {
    throw Error(
        fmt::format("'{}': not an llm.c token file: magic {} version {} instead of {} version {} (uint16) or "
                    "{} version {} (uint32); is it a headerless file (data.format = \"bin\")?",
                    path, header[0], header[1], llmc_variants[0].magic, llmc_variants[0].version,
                    llmc_variants[1].magic, llmc_variants[1].version));
  }
  const int64_t count = header[2];
  const int64_t expected = static_cast<int64_t>(sizeof(header)) + count * variant->token_bytes;
  if (count < 0 || expected != static_cast<int64_t>(bytes.size())) {
    throw Error(fmt::format(
        "'{}': the header promises {} tokens ({} bytes), the file has {} bytes; it is damaged or incomplete",
        path, count, expected, bytes.size()));
  }
  return variant->token_bytes;
}

}  // namespace

std::vector<std::filesystem::path> token_files(const Source& source) {
  try {
    return source_files(source.paths, config::file_endings(source.format));
  } catch (const Error& error) {
    throw Error(fmt::format("data: {}", error.what()));
  }
}

std::vector<std::filesystem::path> data_files(const Source& source) {
  std::vector<std::filesystem::path> files = token_files(source);
  if (source.format != Format::megatron) return files;
  const std::vector<std::filesystem::path> token_files = files;
  for (const std::filesystem::path& file : token_files) files.push_back(index_of(file));
  for (const std::filesystem::path& file : token_files) {
    if (io::is_there(prompts_of(file))) files.push_back(prompts_of(file));
  }
  return files;
}

bool has_llmc_header(const io::RegularFile& file) {
  std::array<int32_t, 2> begin{};
  if (file.size() < llmc_header_ints * sizeof(int32_t)) return false;
  file.read(0, std::as_writable_bytes(std::span(begin)));
  return find_variant(begin[0], begin[1]) != nullptr;
}

TokenDataset::TokenDataset(const Source& source, int64_t vocab_size) : vocab_size_(vocab_size) {
  for (const std::string& path : source.paths) path_ += (path_.empty() ? "" : ", ") + path;
  if (source.format == Format::random) {
    path_ = "random tokens";
    random_seed_ = source.seed;
    end_ = int64_t{1} << 48;
    return;
  }
  std::vector<int64_t> starts{0};
  std::vector<tokens::TokenRange> prompts;
  for (const auto& path : token_files(source)) {
    DocumentIndex documents;
    FileSpan span = open_file(path, source, documents);
    if (span.count == 0) continue;
    span.begin = end_;
    for (size_t i = 1; i < documents.starts.size(); ++i) starts.push_back(end_ + documents.starts[i]);
    for (const tokens::TokenRange& prompt : documents.prompts)
      prompts.push_back({end_ + prompt.begin, end_ + prompt.end});
    end_ += span.count;
    spans_.push_back(std::move(span));
  }
  if (!prompts.empty()) prompts_ = std::make_shared<const Prompts>(std::move(prompts));
  if (source.format == Format::megatron)
    document_starts_ = std::make_shared<const std::vector<int64_t>>(std::move(starts));
  if (end_ == 0) throw Error(fmt::format("data: '{}' has no tokens", path_));
}

TokenDataset::FileSpan TokenDataset::open_file(const std::filesystem::path& path, const Source& source,
                                               DocumentIndex& documents) {
  FileSpan span;
  span.file = std::make_shared<const io::MappedFile>(path);
  span.ids = span.file->bytes();
  switch (source.format) {
    case Format::jsonl:
    case Format::parquet:
    case Format::random:
      throw Error(
          fmt::format("'{}': texts are no tokens: a tokenizer makes them (pptrain tokenize)", path.string()));
    case Format::text:
      span.token_bytes = 1;
      break;
    case Format::bin:
      span.token_bytes = source.token_bytes;
      if (span.ids.size() % static_cast<size_t>(source.token_bytes) != 0) {
        throw Error(fmt::format(
            "'{}': {} bytes are not a whole number of {}-byte ids; it is damaged, or data.dtype is wrong",
            path.string(), span.ids.size(), source.token_bytes));
      }
      break;
    case Format::llmc:
      span.token_bytes = read_llmc_header(*span.file);
      span.ids = span.ids.subspan(llmc_header_ints * sizeof(int32_t));
      break;
    case Format::megatron: {
      documents = read_document_index(index_of(path), span.ids.size());
      span.token_bytes = documents.token_bytes;
      if (io::is_there(prompts_of(path)))
        documents.prompts = read_prompts(prompts_of(path), documents.starts);
      break;
    }
    case Format::npy: {
      const NpyHeader header = read_npy_header(*span.file);
      span.token_bytes = header.token_bytes;
      span.is_signed = header.is_signed;
      span.ids = span.ids.subspan(header.bytes);
      break;
    }
  }
  span.count = static_cast<int64_t>(span.ids.size()) / span.token_bytes;
  return span;
}

void TokenDataset::read_span(const FileSpan& span, int64_t first, std::span<int64_t> out) const {
  const auto widen = [&]<typename Id>(Id) {
    const std::byte* from = span.ids.data() + first * static_cast<int64_t>(sizeof(Id));
    for (size_t i = 0; i < out.size(); ++i, from += sizeof(Id)) {
      Id id;
      std::memcpy(&id, from, sizeof(Id));
      out[i] = static_cast<int64_t>(id);
    }
  };
  const auto widen_either = [&]<typename Unsigned, typename Signed>(Unsigned, Signed) {
    span.is_signed ? widen(Signed{}) : widen(Unsigned{});
  };
  switch (span.token_bytes) {
    case 1:
      widen_either(uint8_t{}, int8_t{});
      break;
    case 2:
      widen_either(uint16_t{}, int16_t{});
      break;
    case 4:
      widen_either(uint32_t{}, int32_t{});
      break;
    default:
      widen_either(uint64_t{}, int64_t{});
  }
  const auto bad = std::ranges::find_if(out, [&](int64_t id) { return id < 0 || id >= vocab_size_; });
  if (bad != out.end()) {
    throw Error(
        fmt::format("'{}': token {} has id {}, but model.vocab_size is {}; is the file made by this model's "
                    "tokenizer, and is data.dtype right?",
                    span.file->path().string(), first + (bad - out.begin()), *bad, vocab_size_));
  }
}

void TokenDataset::read_random(int64_t position, std::span<int64_t> out) const {
  for (int64_t& id : out) {
    const uint64_t drawn = split_mix(*random_seed_ ^ split_mix(static_cast<uint64_t>(position++)));
    id = static_cast<int64_t>(drawn % static_cast<uint64_t>(vocab_size_));
  }
}

void TokenDataset::read(int64_t first, std::span<int64_t> out) const {
  if (first < 0 || first > size() || static_cast<int64_t>(out.size()) > size() - first) {
    throw Error(fmt::format("data: tokens [{}, {}) are outside the {} tokens of '{}'", first,
                            first + static_cast<int64_t>(out.size()), size(), path_));
  }
  int64_t position = begin_ + first;
  if (random_seed_) return read_random(position, out);
  auto span = std::ranges::upper_bound(spans_, position, {}, &FileSpan::begin);
  for (--span; !out.empty(); ++span) {
    const int64_t in_span = position - span->begin;
    const size_t count = std::min(out.size(), static_cast<size_t>(span->count - in_span));
    read_span(*span, in_span, out.first(count));
    out = out.subspan(count);
    position += static_cast<int64_t>(count);
  }
}

TokenDataset TokenDataset::slice(int64_t first, int64_t last) const {
  if (first < 0 || last < first || last > size()) {
    throw Error(
        fmt::format("data: [{}, {}) is not a part of the {} tokens of '{}'", first, last, size(), path_));
  }
  TokenDataset part = *this;
  part.begin_ = begin_ + first;
  part.end_ = begin_ + last;
  return part;
}

std::vector<int64_t> TokenDataset::indexed_documents() const {
  std::vector<int64_t> starts{0};
  const auto first = std::ranges::upper_bound(*document_starts_, begin_);
  for (auto start = first; start != document_starts_->end() && *start < end_; ++start)
    starts.push_back(*start - begin_);
  if (size() > 0) starts.push_back(size());
  return starts;
}

int64_t TokenDataset::prompt_tokens(int64_t first, int64_t last) const {
  return prompts_ ? prompts_->count(begin_ + first, begin_ + last) : 0;
}

TokenDataset::DocumentCount TokenDataset::count_documents() const {
  if (!prompts_) return {};
  const std::vector<int64_t> starts = indexed_documents();
  DocumentCount count{.all = static_cast<int64_t>(starts.size()) - 1};
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t behind_first = starts[i + 1] - starts[i] - 1;
    if (behind_first == prompt_tokens(starts[i], starts[i + 1])) ++count.without_targets;
  }
  return count;
}

void TokenDataset::ignore_prompts(int64_t first, std::span<int64_t> labels) const {
  if (prompts_) prompts_->ignore(begin_ + first, labels);
}

std::optional<TokenDataset> split_off(TokenDataset& train, double val_fraction) {
  if (!(val_fraction >= 0 && val_fraction < 1)) {
    throw UsageError(fmt::format("data.val_fraction: {} is not in [0, 1)", val_fraction));
  }
  if (val_fraction == 0) return std::nullopt;
  const int64_t tokens = train.size();
  const auto held_out = static_cast<int64_t>(std::floor(val_fraction * static_cast<double>(tokens)));
  TokenDataset validation = train.slice(tokens - held_out, tokens);
  train = train.slice(0, tokens - held_out);
  return validation;
}

}  // namespace pptrain::data
