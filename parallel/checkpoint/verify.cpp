#include "parallel/checkpoint/verify.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/files.h"
#include "core/nn/slice.h"
#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::checkpoint {
namespace {

// Pieces stay in a core's cache until they are summed and copied.
constexpr uint64_t piece_bytes = uint64_t{1} << 20;

struct StoredSlice {
  const FileEntry* file;
  const TensorEntry* tensor;
};

struct Stretch {
  int64_t begin = 0;  // in elements of the global tensor
  int64_t end = 0;
  const FileEntry* file = nullptr;
};

std::vector<Stretch> stretches(const std::vector<StoredSlice>& slices) {
  std::vector<Stretch> found;
  for (const StoredSlice& stored : slices) {
    for (const nn::ElementRun& run : nn::element_runs(stored.tensor->slice)) {
      found.push_back({run.global, run.global + run.length, stored.file});
    }
  }
  std::ranges::sort(found, {}, &Stretch::begin);
  return found;
}

// Empty if the slices of one tensor are the whole of it, once.
std::string first_gap_or_overlap(const std::vector<StoredSlice>& slices) {
  const int64_t elements = nn::whole_slice(slices.front().tensor->slice.global).numel();
  const auto missing = [&](int64_t begin, int64_t end) {
    return fmt::format("its elements [{}, {}) of {} are stored nowhere", begin, end, elements);
  };
  int64_t position = 0;
  const FileEntry* before = nullptr;
  for (const Stretch& next : stretches(slices)) {
    if (next.begin > position) return missing(position, next.begin);
    if (next.begin < position) {
      return fmt::format("its elements [{}, {}) of {} are stored twice, in {} and in {}", next.begin,
                         std::min(next.end, position), elements, before->path().string(),
                         next.file->path().string());
    }
    position = next.end;
    before = next.file;
  }
  return position == elements ? "" : missing(position, elements);
}

std::string difference(const StoredSlice& first, const StoredSlice& other) {
  const auto [a, b] = std::pair(first.tensor, other.tensor);
  if (a->dtype == b->dtype && a->slice.global == b->slice.global) return "";
  return fmt::format("it is {} in {}, but {} in {}", describe(a->dtype, a->slice.global),
                     first.file->path().string(), describe(b->dtype, b->slice.global),
                     other.file->path().string());
}

// The numbers that describe the slices: equal for tensors that are sliced alike, as most layers are.
std::vector<int64_t> cut_of(const std::vector<StoredSlice>& slices) {
  std::vector<int64_t> cut;
  for (const StoredSlice& stored : slices) {
    const nn::SliceShape& s = stored.tensor->slice;
    cut.push_back(static_cast<int64_t>(s.global.size()));
    for (const auto* shape : {&s.global, &s.offset, &s.box})
      cut.insert(cut.end(), shape->begin(), shape->end());
    cut.insert(cut.end(), {s.begin, s.end});
  }
  return cut;
}

namespace fs = std::filesystem;

// Adds what `check` throws to `problems`.
template <typename Check>
void attempt(std::vector<std::string>& problems, const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    problems.emplace_back(error.what());
  }
}

void verify_file(const fs::path& step_dir, const FileEntry& entry, std::vector<std::string>& problems) {
  const io::SafetensorsReader file = open_file(step_dir, entry);
  const auto differences = compare(file, entry);
  problems.insert(problems.end(), differences.begin(), differences.end());
  const io::RegularFile input(file.path());
  for (const auto& tensor : entry.tensors) {
    const std::string& name = tensor.first;
    if (!file.contains(name)) continue;
    attempt(problems, [&] {
      const auto ignored = [](uint64_t, std::span<const std::byte>) {};
      const uint64_t size = file.bytes(name).size();
      if (stream_bytes(input, file, name, 0, size, ignored) != tensor.second.checksum)
        throw damaged(file, name);
    });
  }
}

}  // namespace

io::SafetensorsReader open_file(const std::filesystem::path& step_dir, const FileEntry& entry) {
  const std::filesystem::path path = step_dir / entry.path();
  std::error_code error;
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw io::file_error("cannot open", path, error.value());
  if (size != entry.bytes) {
    throw Error(fmt::format("'{}' has {} bytes, but the manifest says {}; it is incomplete or damaged",
                            path.string(), size, entry.bytes));
  }
  return io::SafetensorsReader(path);
}

std::vector<std::string> compare(const io::SafetensorsReader& file, const FileEntry& entry) {
  std::vector<std::string> problems;
  const std::string path = file.path().string();
  for (const auto& [name, expected] : entry.tensors) {
    if (!file.contains(name)) {
      problems.push_back(fmt::format("'{}': the tensor '{}' is missing", path, name));
      continue;
    }
    const std::string found = describe(io::dtype_name(file.spec(name).dtype), file.spec(name).shape);
    const std::string wanted = describe(expected.dtype, expected.stored_shape());
    if (found != wanted) {
      problems.push_back(
          fmt::format("'{}': the tensor '{}' is {}, but the manifest says {}", path, name, found, wanted));
    }
  }
  for (const io::TensorSpec& spec : file.tensors()) {
    if (!entry.tensors.contains(spec.name)) {
      problems.push_back(fmt::format("'{}': the tensor '{}' is not in the manifest", path, spec.name));
    }
  }
  return problems;
}

std::string stream_bytes(const io::RegularFile& input, const io::SafetensorsReader& file,
                         const std::string& tensor, uint64_t begin, uint64_t end, const Take& take) {
  const uint64_t offset = file.offset(tensor);
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(std::min(end - begin, piece_bytes));
  io::Checksum checksum;
  for (uint64_t at = begin; at < end; at += piece_bytes) {
    const std::span piece(buffer.get(), std::min(piece_bytes, end - at));
    input.read(offset + at, piece);
    checksum.add(piece);
    take(at, piece);
  }
  return checksum.hex();
}

Unusable damaged(const io::SafetensorsReader& file, const std::string& tensor) {
  return Unusable(fmt::format("'{}': the tensor '{}' is damaged (its checksum is not the manifest's)",
                              file.path().string(), tensor));
}

std::vector<std::string> coverage_problems(const std::vector<FileEntry>& files) {
  std::map<std::pair<std::string, std::string>, std::vector<StoredSlice>> slices;  // by file kind and name
  for (const FileEntry& file : files) {
    for (const auto& [name, tensor] : file.tensors) slices[{file.file, name}].push_back({&file, &tensor});
  }
  std::vector<std::string> problems;
  std::set<std::vector<int64_t>> proven;  // slicings that are the whole, once
  for (const auto& [key, stored] : slices) {
    std::string problem;
    for (size_t i = 1; i < stored.size() && problem.empty(); ++i) problem = difference(stored[0], stored[i]);
    std::vector<int64_t> cut = cut_of(stored);
    if (problem.empty() && !proven.contains(cut)) problem = first_gap_or_overlap(stored);
    if (problem.empty()) {
      proven.insert(std::move(cut));
    } else {
      problems.push_back(fmt::format("the tensor '{}' of {}: {}", key.second, key.first, problem));
    }
  }
  return problems;
}

std::vector<std::string> verify(const fs::path& step_dir) {
  std::vector<std::string> problems;
  attempt(problems, [&] {
    const Manifest manifest = read_manifest(step_dir);
    for (const FileEntry& entry : manifest.files)
      attempt(problems, [&] { verify_file(step_dir, entry, problems); });
    for (const Attachment& entry : manifest.attachments)
      attempt(problems, [&] { check_attachment(step_dir, entry); });
    if (!problems.empty()) return;  // slices are judged only once they are what the files hold
    for (const std::string& problem : coverage_problems(manifest.files))
      problems.push_back(fmt::format("'{}': {}", step_dir.string(), problem));
  });
  return problems;
}

}  // namespace pptrain::checkpoint
