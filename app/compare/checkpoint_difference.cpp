#include "app/compare/checkpoint_difference.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>

#include "app/plan/plan.h"
#include "core/base/error.h"
#include "core/config/differences.h"
#include "core/io/paths.h"
#include "core/io/safetensors.h"
#include "core/nn/slice.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"
#include "parallel/mesh/device_mesh.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

constexpr int64_t most_elements = int64_t{1} << 22;  // compared at a time

// Orders tensors as the model computes them, the weights before the optimizer's state.
struct Key {
  std::string file, name;

  auto order() const {
    const std::optional<int64_t> layer = layer_of(name);
    const int place = layer ? 1 : name.starts_with("embed.") ? 0 : name.starts_with("norm.") ? 2 : 3;
    return std::tuple(file != checkpoint::model_file, file, place, layer.value_or(0), name);
  }
  bool operator<(const Key& other) const { return order() < other.order(); }
};

// A checkpoint's tensors, and the ranks that wrote them.
class Stored {
 public:
  Stored(const fs::path& folder, bool state) : reader_(folder), manifest_(checkpoint::read_manifest(folder)) {
    for (const checkpoint::FileEntry& file : manifest_.files) {
      if (!state && file.file != checkpoint::model_file) continue;
      for (const auto& [name, tensor] : file.tensors) files_[{file.file, name}].push_back(&file);
    }
  }

  const std::map<Key, std::vector<const checkpoint::FileEntry*>>& files() const { return files_; }
  const checkpoint::Reader& reader() const { return reader_; }
  bool contains(const Key& key) const { return files_.contains(key); }
  const checkpoint::TensorEntry& entry(const Key& key) const {
    return files_.at(key).front()->tensors.at(key.name);
  }

  // The element at this place of the whole tensor, in row-major order.
  StoredElement element(const Key& key, int64_t at, double value) const {
    for (const checkpoint::FileEntry* file : files_.at(key)) {
      const auto runs = nn::element_runs(file->tensors.at(key.name).slice);
      const bool has = std::ranges::any_of(
          runs, [&](const nn::ElementRun& run) { return run.global <= at && at < run.global + run.length; });
      if (has) return {.value = value, .file = file->path().string(), .rank = writer(*file)};
    }
    return {.value = value, .file = {}, .rank = {}};
  }

 private:
  // The writing rank in the saving run's world (rank/checkpoint_contents.cpp defines which rank writes which
  // part).
  std::optional<int> writer(const checkpoint::FileEntry& file) const {
    if (manifest_.job_toml.empty()) return std::nullopt;
    try {
      const Plan plan = make_plan(config::read_saved_job(manifest_.job_toml, "the checkpoint's job"));
      const int first = mesh::rank_at(plan.mesh, {plan.schedule.rank_of(file.stage), 0, 0, 0, 0});
      return mesh::group(plan.mesh, first, mesh::Group::replica).at(static_cast<size_t>(file.part));
    } catch (const std::exception&) {  // a job that this version does not plan
      return std::nullopt;
    }
  }

  checkpoint::Reader reader_;
  checkpoint::Manifest manifest_;
  std::map<Key, std::vector<const checkpoint::FileEntry*>> files_;  // into the manifest
};

std::vector<int64_t> index_at(const std::vector<int64_t>& shape, int64_t at) {
  std::vector<int64_t> index(shape.size());
  for (size_t dim = shape.size(); dim-- > 0; at /= shape[dim]) index[dim] = at % shape[dim];
  return index;
}

void add_distance(double a, double b, TensorDifference& difference) {
  constexpr double infinite = std::numeric_limits<double>::infinity();
  const double distance = std::abs(a - b), scale = std::max(std::abs(a), std::abs(b));
  const bool finite = std::isfinite(distance);
  difference.largest_absolute = std::max(difference.largest_absolute, finite ? distance : infinite);
  difference.largest_relative = std::max(difference.largest_relative, !finite     ? infinite
                                                                      : scale > 0 ? distance / scale
                                                                                  : 0);
}

// Adds two slices that begin at element `begin` of the tensor. The norms stay squared. Returns the place in
// the tensor of the first element that differs; nothing if none does.
std::optional<int64_t> add_elements(const at::Tensor& a, const at::Tensor& b, int64_t begin,
                                    TensorDifference& difference) {
  const at::Tensor values_a = a.to(at::kDouble), values_b = b.to(at::kDouble);
  const auto* const x = values_a.const_data_ptr<double>();
  const auto* const y = values_b.const_data_ptr<double>();
  const auto* const bits_a = static_cast<const std::byte*>(a.const_data_ptr());
  const auto* const bits_b = static_cast<const std::byte*>(b.const_data_ptr());
  const auto size = static_cast<int64_t>(a.element_size());
  std::optional<int64_t> first;
  for (int64_t i = 0; i < a.numel(); ++i) {
    difference.norm_a += x[i] * x[i];
    difference.norm_b += y[i] * y[i];
    if (std::memcmp(bits_a + i * size, bits_b + i * size, static_cast<size_t>(size)) == 0) continue;
    if (!first) first = begin + i;
    ++difference.differing;
    add_distance(x[i], y[i], difference);
  }
  return first;
}

void compare_elements(const Stored& a, const Stored& b, const Key& key, TensorDifference& difference) {
  nn::SliceShape part = nn::whole_slice(difference.shape);
  const int64_t elements = difference.elements = part.end;
  const auto type = io::parse_dtype(a.entry(key).dtype);
  for (int64_t begin = 0; begin < elements; begin += most_elements) {
    part.begin = begin;
    part.end = std::min(begin + most_elements, elements);
    const at::Tensor from_a = at::empty({part.numel()}, type), from_b = at::empty({part.numel()}, type);
    a.reader().read(key.file, key.name, part, from_a);
    b.reader().read(key.file, key.name, part, from_b);
    const bool equal_so_far = difference.differing == 0;
    const std::optional<int64_t> first = add_elements(from_a, from_b, begin, difference);
    if (!equal_so_far || !first) continue;
    difference.index = index_at(difference.shape, *first);
    difference.a = a.element(key, *first, from_a[*first - begin].item<double>());
    difference.b = b.element(key, *first, from_b[*first - begin].item<double>());
  }
  difference.norm_a = std::sqrt(difference.norm_a);
  difference.norm_b = std::sqrt(difference.norm_b);
}

TensorDifference compare(const Stored& a, const Stored& b, const Key& key) {
  TensorDifference difference;
  difference.file = key.file;
  difference.name = key.name;
  if (!a.contains(key) || !b.contains(key)) {
    difference.mismatch = a.contains(key) ? "only in A" : "only in B";
    return difference;
  }
  const auto described = [&](const Stored& stored) {
    return checkpoint::describe(stored.entry(key).dtype, stored.entry(key).slice.global);
  };
  if (described(a) != described(b)) {
    difference.mismatch = fmt::format("{} in A, {} in B", described(a), described(b));
    return difference;
  }
  difference.shape = a.entry(key).slice.global;
  compare_elements(a, b, key, difference);
  return difference;
}

}  // namespace

std::optional<int64_t> layer_of(const std::string& tensor) {
  constexpr std::string_view prefix = "layers.";
  int64_t layer = 0;
  if (!tensor.starts_with(prefix)) return std::nullopt;
  const char* const end = tensor.data() + tensor.size();
  const auto [rest, error] = std::from_chars(tensor.data() + prefix.size(), end, layer);
  return error == std::errc() && rest != end && *rest == '.' ? std::optional(layer) : std::nullopt;
}

fs::path find_checkpoint(const std::string& path) {
  if (!io::is_there(path)) throw UsageError(fmt::format("there is no \"{}\"", path));
  checkpoint::KnownProblems known;
  const auto warn = [](const std::string& text) { spdlog::warn("{}", text); };
  if (const auto found = checkpoint::find_named(path, warn, known)) return *found;
  throw UsageError(fmt::format("\"{}\" holds no checkpoint: give a step's folder or a run's", path));
}

std::vector<TensorDifference> compare_checkpoints(const fs::path& a, const fs::path& b, bool state) {
  const Stored stored_a(a, state), stored_b(b, state);
  auto keys = stored_a.files();
  keys.insert(stored_b.files().begin(), stored_b.files().end());
  std::vector<TensorDifference> result;
  for (const auto& [key, files] : keys) result.push_back(compare(stored_a, stored_b, key));
  return result;
}

}  // namespace pptrain::app
