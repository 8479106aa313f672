#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/coverage.h"
#include "parallel/checkpoint/open_checkpoint.h"

namespace pptrain::checkpoint {
namespace {

// What a file holds of one tensor.
struct Stored {
  const io::SafetensorsReader* file = nullptr;
  const TensorEntry* entry = nullptr;
  bool checked = false;  // its checksum proved right
};

// Elements that are in a stored slice and in a wanted one: where they begin in each, and how many follow.
struct Overlap {
  int64_t stored = 0;
  int64_t wanted = 0;
  int64_t length = 0;
};

std::vector<Overlap> overlaps(const std::vector<nn::ElementRun>& stored,
                              const std::vector<nn::ElementRun>& wanted) {
  std::vector<Overlap> found;
  for (auto a = stored.begin(), b = wanted.begin(); a != stored.end() && b != wanted.end();) {
    const int64_t begin = std::max(a->global, b->global);
    const int64_t end = std::min(a->global + a->length, b->global + b->length);
    if (begin < end) {
      found.push_back({.stored = a->local + begin - a->global,
                       .wanted = b->local + begin - b->global,
                       .length = end - begin});
    }
    if (a->global + a->length < b->global + b->length) {
      ++a;
    } else {
      ++b;
    }
  }
  return found;
}

void check(const std::string& tensor, Stored& stored) {
  if (stored.checked) return;
  check_bytes(*stored.file, tensor, *stored.entry);
  stored.checked = true;
}

// Fills `out` (CPU, contiguous).
void gather(const std::string& tensor, std::vector<Stored>& slices, const nn::SliceShape& wanted,
            const at::Tensor& out) {
  const std::vector<nn::ElementRun> runs = nn::element_runs(wanted);
  const auto size = static_cast<int64_t>(out.element_size());
  auto* const to = static_cast<std::byte*>(out.mutable_data_ptr());
  for (Stored& stored : slices) {
    const std::vector<Overlap> common = overlaps(nn::element_runs(stored.entry->slice), runs);
    if (common.empty()) continue;
    check(tensor, stored);
    const std::byte* const from = stored.file->bytes(tensor).data();
    for (const Overlap& o : common) {
      std::memcpy(to + o.wanted * size, from + o.stored * size, static_cast<size_t>(o.length * size));
    }
  }
}

}  // namespace

struct Reader::Impl {
  std::filesystem::path step_dir;
  Manifest manifest;
  std::vector<io::SafetensorsReader> files;
  std::map<std::pair<std::string, std::string>, std::vector<Stored>> tensors;  // by file kind and name

  explicit Impl(const std::filesystem::path& dir) : step_dir(dir), manifest(read_manifest(dir)) {
    files.reserve(manifest.files.size());  // Stored points into it
    for (const FileEntry& entry : manifest.files) {
      const io::SafetensorsReader& file = files.emplace_back(open_file(dir, entry));
      const auto problems = compare(file, entry);
      if (!problems.empty()) throw Error(problems.front());
      for (const auto& [name, tensor] : entry.tensors) {
        tensors[{entry.file, name}].push_back({.file = &file, .entry = &tensor, .checked = false});
      }
    }
    const auto problems = coverage_problems(manifest.files);
    if (!problems.empty()) throw Error(fmt::format("'{}': {}", dir.string(), problems.front()));
  }

  // The slices that are the tensor.
  std::vector<Stored>& slices(const std::string& file, const std::string& tensor) {
    const auto found = tensors.find({file, tensor});
    if (found != tensors.end()) return found->second;
    throw Error(fmt::format(
        "the checkpoint '{}' has no tensor '{}' in its {} files; was it saved by another model or optimizer?",
        step_dir.string(), tensor, file));
  }
};

Reader::Reader(const std::filesystem::path& step_dir) : impl_(std::make_unique<Impl>(step_dir)) {}
Reader::~Reader() = default;
Reader::Reader(Reader&&) noexcept = default;

const RunState& Reader::state() const {
  return impl_->manifest.state;
}
const Layout& Reader::layout() const {
  return impl_->manifest.layout;
}

bool Reader::contains(const std::string& file, const std::string& tensor) const {
  return impl_->tensors.contains({file, tensor});
}

std::vector<std::string> Reader::names(const std::string& file) const {
  std::vector<std::string> result;
  for (const auto& [key, slices] : impl_->tensors) {
    if (key.first == file) result.push_back(key.second);
  }
  return result;
}

const std::vector<int64_t>& Reader::global_shape(const std::string& file, const std::string& tensor) const {
  return impl_->slices(file, tensor).front().entry->slice.global;
}

void Reader::read(const std::string& file, const std::string& tensor, const nn::SliceShape& wanted,
                  at::Tensor out) const {
  std::vector<Stored>& slices = impl_->slices(file, tensor);
  const TensorEntry& first = *slices.front().entry;
  const std::string stored_as = describe(first.dtype, first.slice.global);
  const std::string wanted_as = describe(io::dtype_name(out.scalar_type()), wanted.global);
  if (stored_as != wanted_as) {
    throw Error(
        fmt::format("'{}': the tensor '{}' is {}, but the model's is {}; was it saved by another model?",
                    slices.front().file->path().string(), tensor, stored_as, wanted_as));
  }
  if (out.numel() != wanted.numel()) {
    throw Error(fmt::format("the tensor '{}': a slice of {} elements cannot be read into {}", tensor,
                            wanted.numel(), out.numel()));
  }
  const auto same = std::ranges::find_if(slices, [&](const Stored& s) { return s.entry->slice == wanted; });
  if (same != slices.end()) {
    check(tensor, *same);
    out.copy_(same->file->view(tensor).view(out.sizes()));
  } else if (out.is_cpu() && out.is_contiguous()) {
    gather(tensor, slices, wanted, out);
  } else {
    const at::Tensor host = at::empty(out.sizes(), out.options().device(at::kCPU));
    gather(tensor, slices, wanted, host);
    out.copy_(host);
  }
}

void Reader::read(const std::string& file, const std::string& tensor, at::Tensor out) const {
  read(file, tensor, nn::whole_slice(out.sizes().vec()), out);
}

}  // namespace pptrain::checkpoint
