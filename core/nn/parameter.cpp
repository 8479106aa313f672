#include "core/nn/parameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "core/kernels/out_of_memory.h"

namespace pptrain::nn {
namespace {

constexpr int64_t alignment = 64;  // elements

int64_t round_up(int64_t n, int64_t multiple = alignment) {
  return (n + multiple - 1) / multiple * multiple;
}

int64_t element_count(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

void check_spec(const ParameterSpec& spec) {
  if (spec.shape.empty() || std::ranges::any_of(spec.shape, [](int64_t n) { return n <= 0; })) {
    throw Error(fmt::format("parameter '{}' has the shape [{}]: every dim must be positive", spec.name,
                            fmt::join(spec.shape, ", ")));
  }
  if (!spec.cut) return;
  const Cut& cut = *spec.cut;
  if (cut.dim < 0 || cut.dim >= static_cast<int>(spec.shape.size()) || cut.begin < 0 || cut.size <= 0 ||
      cut.begin + cut.size > spec.shape[cut.dim]) {
    throw Error(fmt::format("parameter '{}' of shape [{}] has no indices [{}, {}) of dim {}", spec.name,
                            fmt::join(spec.shape, ", "), cut.begin, cut.begin + cut.size, cut.dim));
  }
}

std::vector<int64_t> stacked_shape(std::span<const ParameterSpec> parts) {
  std::vector<int64_t> shape = parts.front().local_shape();
  for (const ParameterSpec& part : parts.subspan(1)) {
    const std::vector<int64_t> other = part.local_shape();
    if (other.size() != shape.size() || !std::equal(shape.begin() + 1, shape.end(), other.begin() + 1)) {
      throw Error(
          fmt::format("parameter '{}' of shape [{}] cannot be stacked under '{}' of shape [{}]: all dims but "
                      "the first must agree",
                      part.name, fmt::join(other, ", "), parts.front().name, fmt::join(shape, ", ")));
    }
    shape[0] += other[0];
  }
  return shape;
}

// Frees the memory behind a tensor and all views of it, which stay valid: restore_memory takes it anew,
// without values. Returns whether there was none.
void release_memory(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(storage.allocator()->allocate(0));
  storage.set_nbytes(0);
}

bool restore_memory(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const size_t bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  if (storage.nbytes() == bytes) return false;
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
  return true;
}

at::Tensor view_of(const at::Tensor& flat, int64_t offset, at::IntArrayRef shape) {
  return flat.narrow(0, offset, c10::multiply_integers(shape)).view(shape);
}

// The box that layers see of a parameter, and of it the elements [begin, end).
SliceShape slice_shape(const ParameterSpec& spec, int64_t begin, int64_t end) {
  SliceShape shape = whole_slice(spec.shape);
  shape.box = spec.local_shape();
  if (spec.cut) shape.offset[spec.cut->dim] = spec.cut->begin;
  shape.begin = begin;
  shape.end = end;
  return shape;
}

}  // namespace

std::vector<int64_t> ParameterSpec::local_shape() const {
  std::vector<int64_t> local = shape;
  if (cut) local[cut->dim] = cut->size;
  return local;
}

Weight& ParameterGroup::add(std::vector<ParameterSpec> parts) {
  if (materialised_) throw Error("a parameter was declared after its group was materialised");
  if (parts.empty()) throw Error("a weight needs at least one parameter");
  for (auto part = parts.begin(); part != parts.end(); ++part) {
    check_spec(*part);
    const auto same_name = [&](const ParameterSpec& other) { return other.name == part->name; };
    const bool repeated =
        std::any_of(parts.begin(), part, same_name) || std::ranges::any_of(declared_, [&](const Declared& d) {
          return std::ranges::any_of(d.parts, same_name);
        });
    if (repeated) throw Error(fmt::format("parameter '{}' is declared twice", part->name));
    if (part->role != parts.front().role)
      throw Error(fmt::format("parameters '{}' and '{}' are stacked, but have different roles", part->name,
                              parts.front().name));
    if (part->copies != parts.front().copies)
      throw Error(fmt::format("parameters '{}' and '{}' are stacked, but have different copies", part->name,
                              parts.front().name));
  }
  const std::vector<int64_t> shape = stacked_shape(parts);
  Declared& declared = declared_.emplace_back();
  declared.size = element_count(shape);
  declared.weight.compute = declared.weight.grad =
      at::empty(shape, at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
  declared.parts = std::move(parts);
  return declared.weight;
}

ParameterGroup::Kind ParameterGroup::kind_of(const ParameterSpec& spec, at::ScalarType compute_dtype) const {
  const bool precise = spec.role == Role::norm || spec.role == Role::router || spec.role == Role::balance;
  return {.type = precise ? at::kFloat : compute_dtype,
          .copies = spec.copies,
          .with_input = is_taken_with_input(spec.role)};
}

// Places each weight in the buffer of its kind.
void ParameterGroup::lay_out(at::ScalarType compute_dtype) {
  for (Declared& declared : declared_) {
    const Kind kind = kind_of(declared.parts.front(), compute_dtype);
    const auto found = std::ranges::find(kinds_, kind);
    declared.buffer = static_cast<size_t>(found - kinds_.begin());
    if (found == kinds_.end()) {
      kinds_.push_back(kind);
      sizes_.push_back(0);
    }
    declared.offset = sizes_[declared.buffer];
    sizes_[declared.buffer] += round_up(declared.size);
  }
  const int64_t unit = division_.parts > 1 ? kernels::squares_block * division_.parts : alignment;
  for (int64_t& size : sizes_) size = round_up(size, unit);
}

void ParameterGroup::allocate(size_t buffer, at::Device device, bool with_gradients) {
  const int64_t size = sizes_[buffer];
  const int64_t piece = size / division_.parts;
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  Whole& whole = whole_.emplace_back();
  Shard& shard = shards_.emplace_back();
  const at::ScalarType type = kinds_[buffer].type;
  whole.copies = shard.copies = kinds_[buffer].copies;
  shard.master = at::zeros({piece}, options);
  const auto compute = options.dtype(type);
  if (type != at::kFloat) shard.compute = at::zeros({piece}, compute);
  whole.with_input = kinds_[buffer].with_input;
  whole.compute = division_.parts > 1 ? at::empty({size}, compute) : shard.rounded();
  if (!with_gradients) return;
  if (division_.own_gradient) {
    whole.grad = at::empty({size}, options);
    shard.grad = at::zeros({piece}, options);
  } else {
    whole.grad = at::zeros({size}, options);
    shard.grad = whole.grad.narrow(0, piece * division_.part, piece);
  }
}

// Those of this rank's piece.
void ParameterGroup::add_slices(const Declared& declared) {
  Shard& shard = shards_[declared.buffer];
  const int64_t piece = shard.master.numel();
  const int64_t first = piece * division_.part;
  int64_t at = declared.offset;
  for (const ParameterSpec& spec : declared.parts) {
    const int64_t size = element_count(spec.local_shape());
    const int64_t begin = std::clamp<int64_t>(first - at, 0, size);
    const int64_t end = std::clamp<int64_t>(first + piece - at, begin, size);
    if (begin < end) {
      Slice slice{.spec = spec,
                  .shape = slice_shape(spec, begin, end),
                  .offset = at + begin - first,
                  .place = at + begin,
                  .master = {},
                  .grad = {},
                  .compute = {}};
      const auto shape =
          slice.shape.covers_box() ? slice.shape.box : std::vector<int64_t>{slice.shape.numel()};
      slice.master = view_of(shard.master, slice.offset, shape);
      slice.compute = shard.compute.defined() ? view_of(shard.compute, slice.offset, shape) : slice.master;
      if (shard.grad.defined()) slice.grad = view_of(shard.grad, slice.offset, shape);
      order_.emplace_back(declared.buffer, shard.slices.size());
      shard.slices.push_back(std::move(slice));
    }
    at += size;
  }
}

void ParameterGroup::materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients,
                                 const Division& division) {
  if (materialised_) throw Error("a parameter group was materialised twice");
  if (compute_dtype != at::kFloat && compute_dtype != at::kBFloat16) {
    throw Error(
        fmt::format("parameters compute in float32 or bfloat16, not {}", c10::toString(compute_dtype)));
  }
  if (division.parts < 1 || division.part < 0 || division.part >= division.parts)
    throw Error(fmt::format("part {} of {} parts of a parameter group", division.part, division.parts));
  division_ = division;
  compute_dtype_ = compute_dtype;
  lay_out(compute_dtype);
  for (size_t buffer = 0; buffer < kinds_.size(); ++buffer) {
    kernels::allocate_for([&] { return fmt::format("weights and gradients of {}", name_); },
                          [&] { allocate(buffer, device, with_gradients); });
  }
  for (Declared& declared : declared_) {
    const Whole& whole = whole_[declared.buffer];
    const std::vector<int64_t> shape = declared.weight.compute.sizes().vec();
    declared.weight.compute = view_of(whole.compute, declared.offset, shape);
    declared.weight.grad = with_gradients ? view_of(whole.grad, declared.offset, shape) : at::Tensor();
    add_slices(declared);
  }
  materialised_ = true;
  // Views are made of tensors with memory.
  release_whole_compute();
  for (size_t buffer = 0; buffer < whole_.size(); ++buffer) release_whole_grad(buffer);
}

void ParameterGroup::initialise(uint64_t seed) {
  for (Slice* slice : slices()) fill_initial_values(slice->spec, slice->shape, seed, slice->master);
  refresh_compute();
}

void ParameterGroup::refresh_compute() {
  for (Shard& shard : shards_) {
    if (shard.compute.defined()) shard.compute.copy_(shard.master);
  }
}

void ParameterGroup::release_whole_compute() {
  if (division_.parts == 1) return;
  for (const Whole& whole : whole_) release_memory(whole.compute);
}

void ParameterGroup::restore_whole_compute() {
  if (division_.parts == 1) return;
  for (const Whole& whole : whole_) restore_memory(whole.compute);
}

void ParameterGroup::release_whole_grad(size_t buffer) {
  const Whole& whole = whole_.at(buffer);
  if (division_.own_gradient && whole.grad.defined()) release_memory(whole.grad);
}

void ParameterGroup::restore_whole_grad(size_t buffer) {
  const Whole& whole = whole_.at(buffer);
  if (division_.own_gradient && whole.grad.defined() && restore_memory(whole.grad)) start_whole_grad(buffer);
}

// Zeros but where products will write: gaps between weights are zeros too. Weights were declared in the order
// in which they lie.
void ParameterGroup::start_whole_grad(size_t buffer) {
  const at::Tensor& grad = whole_[buffer].grad;
  int64_t zeroed = 0;  // up to here, but for unset gradients
  const auto zero_up_to = [&](int64_t end) {
    if (end > zeroed) grad.narrow(0, zeroed, end - zeroed).zero_();
  };
  for (Declared& declared : declared_) {
    if (declared.buffer != buffer) continue;
    declared.weight.grad_is_unset = declared.weight.grad_by_products;
    if (!declared.weight.grad_is_unset) continue;
    zero_up_to(declared.offset);
    zeroed = declared.offset + declared.size;
  }
  zero_up_to(grad.numel());
}

void ParameterGroup::complete_grad(size_t buffer) {
  for (Declared& declared : declared_) {
    if (declared.buffer != buffer || !declared.weight.grad_is_unset) continue;
    declared.weight.grad.zero_();
    declared.weight.grad_is_unset = false;
  }
}

void ParameterGroup::complete_grad() {
  for (size_t buffer = 0; buffer < whole_.size(); ++buffer) complete_grad(buffer);
}

int64_t ParameterGroup::whole_bytes() const {
  size_t bytes = 0;
  for (const Whole& whole : whole_) {
    if (division_.parts > 1) bytes += whole.compute.storage().nbytes();
    if (division_.own_gradient && whole.grad.defined()) bytes += whole.grad.storage().nbytes();
  }
  return static_cast<int64_t>(bytes);
}

void ParameterGroup::zero_grad() {
  for (size_t buffer = 0; buffer < whole_.size(); ++buffer) {
    const at::Tensor& grad = division_.own_gradient ? shards_[buffer].grad : whole_[buffer].grad;
    if (grad.defined()) grad.zero_();
  }
  if (division_.own_gradient) return;  // what is unset of whole gradients is none of theirs
  for (Declared& declared : declared_) declared.weight.grad_is_unset = false;
}

void ParameterGroup::start_grad() {
  if (division_.own_gradient) return zero_grad();
  for (size_t buffer = 0; buffer < whole_.size(); ++buffer) {
    if (whole_[buffer].grad.defined()) start_whole_grad(buffer);
  }
}

std::vector<Shard*> ParameterGroup::shards() {
  std::vector<Shard*> result;
  for (Shard& shard : shards_) result.push_back(&shard);
  return result;
}

std::vector<Slice*> ParameterGroup::slices() {
  std::vector<Slice*> result;
  for (const auto& [buffer, place] : order_) result.push_back(&shards_[buffer].slices[place]);
  return result;
}

Slice* ParameterGroup::find(std::string_view name) {
  for (Slice* slice : slices()) {
    if (slice->spec.name == name) return slice;
  }
  return nullptr;
}

std::vector<const ParameterSpec*> ParameterGroup::specs() const {
  std::vector<const ParameterSpec*> result;
  for (const Declared& declared : declared_) {
    for (const ParameterSpec& spec : declared.parts) result.push_back(&spec);
  }
  return result;
}

int64_t ParameterGroup::parameter_count() const {
  return std::accumulate(declared_.begin(), declared_.end(), int64_t{0},
                         [](int64_t sum, const Declared& d) { return sum + d.size; });
}

ParameterGroup& ParameterStore::add_group(std::string name, Spread spread) {
  return groups_.emplace_back(std::move(name), spread);
}

void ParameterStore::materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients,
                                 const Divisions& divisions) {
  std::set<std::string_view> names;
  for (const ParameterSpec* spec : specs()) {
    if (!names.insert(spec->name).second)
      throw Error(fmt::format("parameter '{}' is declared twice, in two groups", spec->name));
  }
  compute_dtype_ = compute_dtype;
  for (ParameterGroup& group : groups_) {
    const bool experts = group.spread() == Spread::experts;
    group.materialise(device, compute_dtype, with_gradients, experts ? divisions.experts : divisions.dense);
  }
}

void ParameterStore::initialise(uint64_t seed) {
  for (ParameterGroup& group : groups_) group.initialise(seed);
}

void ParameterStore::refresh_compute() {
  for (ParameterGroup& group : groups_) group.refresh_compute();
}

void ParameterStore::zero_grad() {
  for (ParameterGroup& group : groups_) group.zero_grad();
}

void ParameterStore::start_grad() {
  for (ParameterGroup& group : groups_) group.start_grad();
}

std::vector<Shard*> ParameterStore::shards() {
  std::vector<Shard*> result;
  for (ParameterGroup& group : groups_) {
    for (Shard* shard : group.shards()) result.push_back(shard);
  }
  return result;
}

std::vector<Slice*> ParameterStore::slices() {
  std::vector<Slice*> result;
  for (ParameterGroup& group : groups_) {
    for (Slice* slice : group.slices()) result.push_back(slice);
  }
  return result;
}

Slice* ParameterStore::find(std::string_view name) {
  for (ParameterGroup& group : groups_) {
    if (Slice* slice = group.find(name)) return slice;
  }
  return nullptr;
}

std::vector<const ParameterSpec*> ParameterStore::specs() const {
  std::vector<const ParameterSpec*> result;
  for (const ParameterGroup& group : groups_) {
    for (const ParameterSpec* spec : group.specs()) result.push_back(spec);
  }
  return result;
}

int64_t ParameterStore::parameter_count() const {
  return std::accumulate(groups_.begin(), groups_.end(), int64_t{0},
                         [](int64_t sum, const ParameterGroup& g) { return sum + g.parameter_count(); });
}

void copy_slice(const at::Tensor& whole, const SliceShape& slice, at::Tensor& out) {
  if (slice.is_whole()) {
    out.copy_(whole);
    return;
  }
  const at::Tensor from = whole.reshape({-1});
  const at::Tensor to = out.view({-1});
  for (const ElementRun& run : element_runs(slice)) {
    to.narrow(0, run.local, run.length).copy_(from.narrow(0, run.global, run.length));
  }
}

}  // namespace pptrain::nn
