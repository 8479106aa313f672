#include "core/nn/parameter.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
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

int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
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

std::vector<int64_t> stacked_shape(std::span<const ParameterSpec> stack) {
  std::vector<int64_t> shape = stack.front().local_shape();
  for (const ParameterSpec& spec : stack.subspan(1)) {
    const std::vector<int64_t> other = spec.local_shape();
    if (other.size() != shape.size() || !std::equal(shape.begin() + 1, shape.end(), other.begin() + 1)) {
      throw Error(fmt::format(
          "parameter '{}' of shape [{}] cannot be stacked under '{}' of shape [{}]: all dims but the first "
          "must agree",
          spec.name, fmt::join(other, ", "), stack.front().name, fmt::join(shape, ", ")));
    }
    shape[0] += other[0];
  }
  return shape;
}

// What `of` gives of each group, in one list.
template <class Groups, class Of>
auto joined(Groups& groups, const Of& of) {
  decltype(of(groups.front())) result;
  for (auto& group : groups) {
    const auto each = of(group);
    result.insert(result.end(), each.begin(), each.end());
  }
  return result;
}

// Frees the memory behind a tensor and all its views, which stay valid. restore_memory allocates it again,
// without values, and returns whether there was none.
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

// The box that layers see of a parameter, and its elements [begin, end).
SliceShape slice_shape(const ParameterSpec& spec, int64_t begin, int64_t end) {
  SliceShape shape = whole_slice(spec.shape);
  shape.box = spec.local_shape();
  if (spec.cut) shape.offset[spec.cut->dim] = spec.cut->begin;
  shape.begin = begin;
  shape.end = end;
  return shape;
}

// Throws Error unless a group that has `others` may stack these as one weight.
void check_stack(std::span<const ParameterSpec> stack, const std::deque<Weight>& others) {
  for (size_t i = 0; i < stack.size(); ++i) {
    const ParameterSpec &spec = stack[i], &first = stack.front();
    check_spec(spec);
    const auto same_name = [&](const ParameterSpec& other) { return other.name == spec.name; };
    if (std::ranges::any_of(stack.first(i), same_name) || std::ranges::any_of(others, [&](const Weight& w) {
          return std::ranges::any_of(w.parameters, same_name);
        }))
      throw Error(fmt::format("parameter '{}' is declared twice", spec.name));
    if (spec.role != first.role || spec.copies != first.copies)
      throw Error(fmt::format("parameters '{}' and '{}' are stacked, but have different {}", spec.name,
                              first.name, spec.role != first.role ? "roles" : "copies"));
    if (spec.frozen != first.frozen)
      throw UsageError(fmt::format(
          "{} is frozen, but {}, which one GEMM computes with it, is not: freeze both, or neither",
          (spec.frozen ? spec : first).name, (spec.frozen ? first : spec).name));
  }
}

// FNV-1a (Fowler, Noll, Vo) over the bytes of the name.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// Finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// kernels::normal_values for any type, rounded from float32; float32 values exist one chunk at a time.
void fill_normal(at::Tensor& out, uint64_t key, int64_t first, double std) {
  if (out.scalar_type() == at::kFloat) return kernels::normal_values(out, key, first, std);
  constexpr int64_t piece = int64_t{1} << 20;
  for (int64_t at = 0; at < out.numel(); at += piece) {
    const at::Tensor part = out.narrow(0, at, std::min(piece, out.numel() - at));
    at::Tensor values = at::empty(part.sizes(), part.options().dtype(at::kFloat));
    kernels::normal_values(values, key, first + at, std);
    part.copy_(values);
  }
}

}  // namespace

std::vector<int64_t> ParameterSpec::local_shape() const {
  std::vector<int64_t> local = shape;
  if (cut) local[cut->dim] = cut->size;
  return local;
}

void ParameterGroup::put_adapters_in(ParameterGroup& group) {
  adapters_ = &group;
  group.of_adapters_ = true;
}

at::Tensor Weight::grad_or_scratch() const {
  return frozen() ? at::empty(compute.sizes(), compute.options().dtype(at::kFloat)) : grad;
}

// A pass of a dry run finds copies that are up to date: they are made once a step, not once a pass.
void Weight::allocate_fp8(const Buffer& home, bool with_gradients) {
  if (compute.scalar_type() != at::kBFloat16)
    throw Error(fmt::format("{} is multiplied in FP8, which needs bfloat16", parameters.front().name));
  home_ = &home;
  const auto allocate = [&](int64_t rows, int64_t cols) {
    const auto options = compute.options();
    return Fp8Copy{.values = at::empty({rows, cols}, options.dtype(at::kFloat8_e4m3fn)),
                   .scales = at::empty({rows}, options.dtype(at::kFloat)),
                   .changes = compute.is_meta() ? home.changes : -1};
  };
  fp8_rows_ = allocate(compute.size(0), compute.size(1));
  if (with_gradients) fp8_columns_ = allocate(compute.size(1), compute.size(0));
}

const Fp8Copy& Weight::renewed(Fp8Copy& copy, const Quantize& quantize) {
  if (copy.changes != home_->changes) {
    quantize(compute, copy.values, copy.scales);
    copy.changes = home_->changes;
  }
  return copy;
}

Weight& ParameterGroup::add(std::vector<ParameterSpec> parameters) {
  if (materialised_) throw Error("a parameter was declared after its group was materialised");
  if (parameters.empty()) throw Error("a weight needs at least one parameter");
  for (ParameterSpec& spec : parameters) spec.frozen = learning_.freezes && learning_.freezes(spec);
  check_stack(parameters, weights_);
  const at::Tensor shape =
      at::empty(stacked_shape(parameters), at::TensorOptions().device(at::kMeta).dtype(at::kFloat));
  Weight& weight = weights_.emplace_back();
  weight.parameters = std::move(parameters);
  weight.compute = weight.grad = shape;
  return weight;
}

// The buffer for parameters of this kind; adds it if it is missing.
size_t ParameterGroup::buffer_for(const ParameterSpec& spec) {
  const bool precise = spec.role == Role::norm || spec.role == Role::router || spec.role == Role::balance;
  const at::ScalarType type = precise ? at::kFloat : compute_dtype_;
  const bool with_input = is_taken_with_input(spec.role);
  const auto found = std::ranges::find_if(buffers_, [&](const Buffer& buffer) {
    return buffer.type == type && buffer.copies == spec.copies && buffer.with_input == with_input &&
           buffer.frozen == spec.frozen;
  });
  if (found != buffers_.end()) return static_cast<size_t>(found - buffers_.begin());
  Buffer& added = buffers_.emplace_back();
  added.type = type;
  added.copies = spec.copies;
  added.with_input = with_input;
  added.frozen = spec.frozen;
  return buffers_.size() - 1;
}

int64_t shard_elements(int64_t elements, int ranks) {
  const int64_t unit = ranks > 1 ? kernels::squares_block * ranks : alignment;
  return round_up(elements, unit) / ranks;
}

// Gives each weight its place, and returns the elements of each whole buffer, gaps included.
std::vector<int64_t> ParameterGroup::lay_out() {
  std::vector<int64_t> sizes;
  for (Weight& weight : weights_) {
    weight.buffer = buffer_for(weight.parameters.front());
    sizes.resize(buffers_.size());
    weight.offset = sizes[weight.buffer];
    sizes[weight.buffer] += round_up(weight.compute.numel(), alignment);
  }
  for (int64_t& size : sizes) size = shard_elements(size, place_.count) * place_.count;
  return sizes;
}

void ParameterGroup::allocate(Buffer& buffer, int64_t size, at::Device device, bool with_gradients) {
  const int64_t shard = size / place_.count;
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  if (!buffer.frozen) buffer.master = at::zeros({shard}, options);
  const auto compute = options.dtype(buffer.type);
  if (buffer.frozen || buffer.type != at::kFloat) buffer.compute = at::zeros({shard}, compute);
  buffer.whole_compute = is_sharded() ? at::empty({size}, compute) : buffer.rounded();
  if (!with_gradients || buffer.frozen) return;
  if (place_.own_gradient) {
    buffer.whole_grad = at::empty({size}, options);
    buffer.grad = at::zeros({shard}, options);
  } else {
    buffer.whole_grad = at::zeros({size}, options);
    buffer.grad = buffer.whole_grad.narrow(0, shard * place_.index, shard);
  }
}

// Adds the slices of this rank's shard.
void ParameterGroup::add_slices(const Weight& weight) {
  Buffer& buffer = buffers_[weight.buffer];
  const int64_t held = buffer.rounded().numel();
  const int64_t first = held * place_.index;
  int64_t at = weight.offset;
  for (const ParameterSpec& spec : weight.parameters) {
    const int64_t size = c10::multiply_integers(spec.local_shape());
    const int64_t begin = std::clamp<int64_t>(first - at, 0, size);
    const int64_t end = std::clamp<int64_t>(first + held - at, begin, size);
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
      if (buffer.master.defined()) slice.master = view_of(buffer.master, slice.offset, shape);
      slice.compute = buffer.compute.defined() ? view_of(buffer.compute, slice.offset, shape) : slice.master;
      if (buffer.grad.defined()) slice.grad = view_of(buffer.grad, slice.offset, shape);
      order_.emplace_back(weight.buffer, buffer.slices.size());
      buffer.slices.push_back(std::move(slice));
    }
    at += size;
  }
}

void ParameterGroup::materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients,
                                 const ShardPlace& place) {
  if (materialised_) throw Error("a parameter group was materialised twice");
  if (compute_dtype != at::kFloat && compute_dtype != at::kBFloat16) {
    throw Error(
        fmt::format("parameters compute in float32 or bfloat16, not {}", c10::toString(compute_dtype)));
  }
  if (place.count < 1 || place.index < 0 || place.index >= place.count)
    throw Error(fmt::format("shard {} of {} shards of a parameter group", place.index, place.count));
  place_ = place;
  compute_dtype_ = compute_dtype;
  const std::vector<int64_t> sizes = lay_out();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    kernels::allocate_for([&] { return fmt::format("weights and gradients of {}", name_); },
                          [&] { allocate(buffers_[i], sizes[i], device, with_gradients); });
  }
  for (Weight& weight : weights_) {
    const Buffer& buffer = buffers_[weight.buffer];
    const std::vector<int64_t> shape = weight.compute.sizes().vec();
    weight.compute = view_of(buffer.whole_compute, weight.offset, shape);
    weight.grad =
        buffer.whole_grad.defined() ? view_of(buffer.whole_grad, weight.offset, shape) : at::Tensor();
    if (weight.in_fp8) weight.allocate_fp8(buffer, with_gradients);
    add_slices(weight);
  }
  materialised_ = true;
  // Views are made of tensors with memory.
  release_whole_compute();
  for (size_t buffer = 0; buffer < buffers_.size(); ++buffer) release_whole_grad(buffer);
}

void ParameterGroup::initialise(uint64_t seed) {
  for (Slice* slice : slices()) {
    at::Tensor values = slice->values();
    fill_initial_values(slice->spec, slice->shape, seed, values);
  }
  refresh_compute();
}

void ParameterGroup::refresh_compute() {
  for (Buffer& buffer : buffers_) {
    if (!buffer.frozen && buffer.compute.defined()) buffer.compute.copy_(buffer.master);
    ++buffer.changes;
  }
}

void ParameterGroup::release_whole_compute() {
  if (!is_sharded()) return;
  for (const Buffer& buffer : buffers_) release_memory(buffer.whole_compute);
  for_each_fp8_copy([](const at::Tensor& tensor) { release_memory(tensor); });
}

void ParameterGroup::restore_whole_compute() {
  if (!is_sharded()) return;
  for (Buffer& buffer : buffers_) {
    restore_memory(buffer.whole_compute);
    ++buffer.changes;
  }
  for_each_fp8_copy(restore_memory);
}

void ParameterGroup::for_each_fp8_copy(const std::function<void(const at::Tensor&)>& body) const {
  for (const Weight& weight : weights_) {
    for (const Fp8Copy* copy : weight.fp8_copies()) {
      if (!copy->values.defined()) continue;
      body(copy->values);
      body(copy->scales);
    }
  }
}

void ParameterGroup::release_whole_grad(size_t buffer) {
  const at::Tensor& grad = buffers_.at(buffer).whole_grad;
  if (place_.own_gradient && grad.defined()) release_memory(grad);
}

void ParameterGroup::restore_whole_grad(size_t buffer) {
  const at::Tensor& grad = buffers_.at(buffer).whole_grad;
  if (place_.own_gradient && grad.defined() && restore_memory(grad)) start_whole_grad(buffer);
}

// Zeros except where GEMMs will write: gaps between weights are zeros too. Weights were declared in the order
// in which they lie.
void ParameterGroup::start_whole_grad(size_t buffer) {
  const at::Tensor& grad = buffers_[buffer].whole_grad;
  int64_t zeroed = 0;  // up to here, but for unset gradients
  const auto zero_up_to = [&](int64_t end) {
    if (end > zeroed) grad.narrow(0, zeroed, end - zeroed).zero_();
  };
  for (Weight& weight : weights_) {
    if (weight.buffer != buffer) continue;
    weight.grad_is_unset = weight.grad_by_products;
    if (!weight.grad_is_unset) continue;
    zero_up_to(weight.offset);
    zeroed = weight.offset + weight.grad.numel();
  }
  zero_up_to(grad.numel());
}

void ParameterGroup::complete_grad(size_t buffer) {
  for (Weight& weight : weights_) {
    if (weight.buffer == buffer && std::exchange(weight.grad_is_unset, false)) weight.grad.zero_();
  }
}

void ParameterGroup::complete_grad() {
  for (size_t buffer = 0; buffer < buffers_.size(); ++buffer) complete_grad(buffer);
}

// Whole gradients stay as they are, unset or not, if this rank's shard has its own gradient.
void ParameterGroup::zero_grad() {
  for (const Buffer& buffer : buffers_) {
    const at::Tensor& grad = place_.own_gradient ? buffer.grad : buffer.whole_grad;
    if (grad.defined()) grad.zero_();
  }
  if (place_.own_gradient) return;
  for (Weight& weight : weights_) weight.grad_is_unset = false;
}

void ParameterGroup::start_grad() {
  if (place_.own_gradient) return zero_grad();
  for (size_t buffer = 0; buffer < buffers_.size(); ++buffer) {
    if (buffers_[buffer].whole_grad.defined()) start_whole_grad(buffer);
  }
}

std::vector<Buffer*> ParameterGroup::buffers() {
  std::vector<Buffer*> result;
  for (Buffer& buffer : buffers_) result.push_back(&buffer);
  return result;
}

std::vector<Slice*> ParameterGroup::slices() {
  std::vector<Slice*> result;
  for (const auto& [buffer, place] : order_) result.push_back(&buffers_[buffer].slices[place]);
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
  for (const Weight& weight : weights_) {
    for (const ParameterSpec& spec : weight.parameters) result.push_back(&spec);
  }
  return result;
}

int64_t ParameterGroup::fp8_bytes() const {
  int64_t bytes = 0;
  for_each_fp8_copy([&](const at::Tensor& tensor) { bytes += static_cast<int64_t>(tensor.nbytes()); });
  return bytes;
}

int64_t ParameterGroup::parameter_count() const {
  return std::accumulate(weights_.begin(), weights_.end(), int64_t{0},
                         [](int64_t sum, const Weight& weight) { return sum + weight.compute.numel(); });
}

ParameterGroup& ParameterStore::add_group(std::string name, bool of_experts) {
  return groups_.emplace_back(std::move(name), of_experts, learning_);
}

void ParameterStore::materialise(at::Device device, at::ScalarType compute_dtype, bool with_gradients,
                                 const PlaceOf& place_of) {
  std::set<std::string_view> names;
  for (const ParameterSpec* spec : specs()) {
    if (!names.insert(spec->name).second)
      throw Error(fmt::format("parameter '{}' is declared twice, in two groups", spec->name));
  }
  compute_dtype_ = compute_dtype;
  for (ParameterGroup& group : groups_)
    group.materialise(device, compute_dtype, with_gradients, place_of ? place_of(group) : ShardPlace());
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

std::vector<Buffer*> ParameterStore::buffers() {
  return joined(groups_, [](ParameterGroup& group) { return group.buffers(); });
}

std::vector<Slice*> ParameterStore::slices() {
  return joined(groups_, [](ParameterGroup& group) { return group.slices(); });
}

Slice* ParameterStore::find(std::string_view name) {
  for (ParameterGroup& group : groups_) {
    if (Slice* slice = group.find(name)) return slice;
  }
  return nullptr;
}

std::vector<const ParameterSpec*> ParameterStore::specs() const {
  return joined(groups_, [](const ParameterGroup& group) { return group.specs(); });
}

int64_t ParameterStore::parameter_count() const {
  return std::accumulate(groups_.begin(), groups_.end(), int64_t{0},
                         [](int64_t sum, const ParameterGroup& g) { return sum + g.parameter_count(); });
}

uint64_t random_key(const ParameterSpec& spec, uint64_t salt) {
  return mix(hash_name(spec.init_name.empty() ? spec.name : spec.init_name) ^ mix(salt));
}

void fill_initial_values(const ParameterSpec& spec, const SliceShape& slice, uint64_t seed, at::Tensor& out) {
  if (spec.role == Role::norm) {
    out.fill_(spec.norm_start);
    return;
  }
  if (spec.role == Role::bias || spec.role == Role::balance || spec.init_std == 0) {
    out.zero_();
    return;
  }
  const uint64_t key = random_key(spec, seed);
  const at::Tensor flat = out.view({-1});
  for (const ElementRun& run : element_runs(slice)) {
    at::Tensor values = flat.narrow(0, run.local, run.length);
    fill_normal(values, key, run.global, spec.init_std);
  }
}

}  // namespace pptrain::nn
