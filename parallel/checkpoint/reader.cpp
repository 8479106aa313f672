#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/io/checksum.h"
#include "core/io/files.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/verify.h"

namespace pptrain::checkpoint {
namespace {

// What a file holds of one tensor.
struct Stored {
  const io::SafetensorsReader* file = nullptr;
  const TensorEntry* entry = nullptr;
  bool checked = false;  // its checksum proved right
};

// Elements that are both in a stored slice and in a wanted one: their begin in each, and their number.
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

// The slices that are wanted of each tensor, by file kind and name.
using Wanted = std::map<std::pair<std::string, std::string>, std::vector<const nn::SliceShape*>>;

Wanted index_of(const Destinations& destinations) {
  Wanted wanted;
  for (const auto& [file, tensors] : destinations) {
    for (const NamedTensor& t : tensors) wanted[{file, t.name}].push_back(&t.slice);
  }
  return wanted;
}

// A run may remove the checkpoint while it is read here.
template <typename Body>
auto or_unusable(const std::filesystem::path& step_dir, const Body& body) {
  try {
    return body();
  } catch (const Unusable&) {
    throw;
  } catch (const Error& error) {
    std::error_code unknown;
    if (std::filesystem::exists(step_dir, unknown) || unknown) throw Unusable(error.what());
    throw Unusable(
        fmt::format("'{}' is gone: a run that goes on removes its old checkpoints (checkpoint.keep_last_n). "
                    "Try again, which "
                    "takes a newer one, or name one that stays",
                    step_dir.string()));
  }
}

// Copies the overlaps that lie in [begin, end) of a stored slice's elements; `piece` holds these elements.
class OverlapCopy {
 public:
  OverlapCopy(std::span<const Overlap> common, int64_t element, std::byte* to)
      : common_(common), element_(element), to_(to) {}

  // Ranges ascend.
  void take(int64_t begin, int64_t end, const std::byte* piece) {
    for (; next_ < common_.size(); ++next_) {
      const Overlap& o = common_[next_];
      const int64_t first = std::max(begin, o.stored), last = std::min(end, o.stored + o.length);
      if (first < last) {
        std::memcpy(to_ + (o.wanted + first - o.stored) * element_, piece + (first - begin) * element_,
                    static_cast<size_t>((last - first) * element_));
      }
      if (o.stored + o.length > end) return;
    }
  }

 private:
  std::span<const Overlap> common_;
  int64_t element_;
  std::byte* to_;
  size_t next_ = 0;
};

}  // namespace

struct Reader::Impl {
  std::filesystem::path step_dir;
  Manifest manifest;
  std::vector<io::SafetensorsReader> files;
  std::map<std::pair<std::string, std::string>, std::vector<Stored>> tensors;  // by file kind and name
  std::optional<io::RegularFile> open;  // the one read last: ranks read file after file

  explicit Impl(const std::filesystem::path& dir)
      : step_dir(dir), manifest(or_unusable(dir, [&] { return read_manifest(dir); })) {
    files.reserve(manifest.files.size());  // Stored points into it
    or_unusable(dir, [&] {
      for (const FileEntry& entry : manifest.files) add(entry);
    });
    const auto problems = coverage_problems(manifest.files);
    if (!problems.empty()) throw Unusable(fmt::format("'{}': {}", dir.string(), problems.front()));
  }

  void add(const FileEntry& entry) {
    const io::SafetensorsReader& file = files.emplace_back(open_file(step_dir, entry));
    const auto problems = compare(file, entry);
    if (!problems.empty()) throw Unusable(problems.front());
    for (const auto& [name, tensor] : entry.tensors) {
      tensors[{entry.file, name}].push_back({.file = &file, .entry = &tensor, .checked = false});
    }
  }

  const io::RegularFile& input(const std::filesystem::path& path) {
    if (!open || open->path() != path) open.emplace(path);
    return *open;
  }

  // Hands bytes [begin, end) of a stored slice to `take`, piece by piece. If they are all of it and were not
  // checked before: throws Unusable unless their checksum is the manifest's.
  void stream(const std::string& tensor, Stored& stored, uint64_t begin, uint64_t end, const Take& take) {
    or_unusable(step_dir, [&] {
      const std::string sum =
          stream_bytes(input(stored.file->path()), *stored.file, tensor, begin, end, take);
      if (stored.checked || begin > 0 || end < stored.file->bytes(tensor).size()) return;
      if (sum != stored.entry->checksum) throw damaged(*stored.file, tensor);
      stored.checked = true;
    });
  }

  void check(const std::string& tensor, Stored& stored) {
    if (stored.checked) return;
    stream(tensor, stored, 0, stored.file->bytes(tensor).size(), [](uint64_t, std::span<const std::byte>) {});
  }

  // Fills `out` (CPU, contiguous) with a stored slice.
  void copy_whole(const std::string& tensor, Stored& stored, const at::Tensor& out) {
    auto* const to = static_cast<std::byte*>(out.mutable_data_ptr());
    stream(tensor, stored, 0, out.nbytes(), [&](uint64_t begin, std::span<const std::byte> piece) {
      std::memcpy(to + begin, piece.data(), piece.size());
    });
  }

  // Fills `out` (CPU, contiguous) from parts of stored slices.
  void gather(const std::string& tensor, std::vector<Stored>& slices, const nn::SliceShape& wanted,
              const at::Tensor& out) {
    const std::vector<nn::ElementRun> runs = nn::element_runs(wanted);
    const auto size = static_cast<int64_t>(out.element_size());
    for (Stored& stored : slices) {
      const std::vector<Overlap> common = overlaps(nn::element_runs(stored.entry->slice), runs);
      if (common.empty()) continue;
      OverlapCopy copy(common, size, static_cast<std::byte*>(out.mutable_data_ptr()));
      const auto bytes = [&](int64_t elements) { return static_cast<uint64_t>(elements * size); };
      uint64_t begin = 0, end = stored.file->bytes(tensor).size();
      if (stored.checked) {
        begin = bytes(common.front().stored);
        end = bytes(common.back().stored + common.back().length);
      }
      stream(tensor, stored, begin, end, [&](uint64_t at, std::span<const std::byte> piece) {
        const auto first = static_cast<int64_t>(at) / size;
        copy.take(first, first + static_cast<int64_t>(piece.size()) / size, piece.data());
      });
    }
  }

  // Checks slices that no rank reads whole; of the others this rank checks those that it reads whole.
  void share_checks(comm::Communicator& comm, const Destinations& destinations) {
    const Wanted wanted = index_of(destinations);
    std::vector<std::pair<const std::string*, Stored*>> all;  // the same order on all ranks
    std::vector<double> readers;
    for (auto& [key, slices] : tensors) {
      const auto found = wanted.find(key);
      for (Stored& stored : slices) {
        const auto is_it = [&](const nn::SliceShape* slice) { return *slice == stored.entry->slice; };
        all.emplace_back(&key.second, &stored);
        readers.push_back(found != wanted.end() && std::ranges::any_of(found->second, is_it) ? 1 : 0);
      }
    }
    const std::vector<double> mine = readers;
    readers = comm::all_reduce_sum(comm, readers);
    double total = 0;
    const auto bytes = [&](size_t i) {
      return static_cast<double>(all[i].second->file->bytes(*all[i].first).size());
    };
    for (size_t i = 0; i < all.size(); ++i) total += readers[i] == 0 ? bytes(i) : 0;
    double before = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      auto& [name, stored] = all[i];
      if (readers[i] == 0) {
        const double share = total / comm.size();
        const bool is_mine =
            std::min(static_cast<int>(before / std::max(share, 1.0)), comm.size() - 1) == comm.rank();
        before += bytes(i);
        if (is_mine) check(*name, *stored);
      }
      if (mine[i] == 0) stored->checked = true;  // by this rank or by another
    }
  }

  // The stored slices that make up the tensor.
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

bool Reader::weights_alone() const {
  return impl_->manifest.weights_alone();
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
  const bool direct = out.is_cpu() && out.is_contiguous();
  const at::Tensor host = direct ? out : at::empty(out.sizes(), out.options().device(at::kCPU));
  const auto same = std::ranges::find_if(slices, [&](const Stored& s) { return s.entry->slice == wanted; });
  if (same != slices.end()) {
    impl_->copy_whole(tensor, *same, host);
  } else {
    impl_->gather(tensor, slices, wanted, host);
  }
  if (!direct) out.copy_(host);
}

void Reader::read(const std::string& file, const std::string& tensor, at::Tensor out) const {
  read(file, tensor, nn::whole_slice(out.sizes().vec()), out);
}

void Reader::read_shared(comm::Communicator& comm, const Destinations& wanted) const {
  impl_->share_checks(comm, wanted);
  for (const auto& [file, tensors] : wanted) {
    for (const NamedTensor& t : tensors) read(file, t.name, t.slice, t.tensor);
  }
}

}  // namespace pptrain::checkpoint
