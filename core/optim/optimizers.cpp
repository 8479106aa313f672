// The updates that step each element by itself, and the optimizers by name: which update steps which
// parameter.
#include <ATen/ops/sign.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/kernels/kernels.h"
#include "core/optim/footprint.h"
#include "core/optim/groups.h"
#include "core/optim/muon.h"
#include "core/optim/optimizer.h"

namespace pptrain::optim {
namespace {

using config::OptimizerSection;
using StepKernel = kernels::Kernel<void(const std::vector<kernels::StepPart>&)>;

// What rounds a slice's moments in a step: a function of the parameter's name, the element and the step.
kernels::RoundingBits rounding_bits(const nn::Slice& slice, int64_t step) {
  kernels::RoundingBits bits{.key = nn::random_key(slice.spec, static_cast<uint64_t>(step)),
                             .first = slice.shape.begin};
  if (const auto& cut = slice.spec.cut) {
    const std::vector<int64_t>& shape = slice.spec.shape;
    const int64_t below = c10::multiply_integers(shape.begin() + cut->dim + 1, shape.end());
    bits.run = cut->size * below;
    bits.stride = shape[cut->dim] * below;
    bits.offset = cut->begin * below;
  }
  return bits;
}

// AdamW or Lion, with betas and eps of the options: the kernel, and what it keeps of each parameter. Throws
// Error unless there are two betas.
class MomentUpdate final : public Update {
 public:
  MomentUpdate(const StepKernel& kernel, std::vector<std::string> state_files,
               const OptimizerSection& options)
      : kernel_(kernel),
        state_files_(std::move(state_files)),
        state_type_(options.state_dtype == config::Dtype::bf16 ? at::kBFloat16 : at::kFloat),
        eps_(options.eps) {
    if (options.betas.size() != 2)
      throw Error(fmt::format("{} needs two betas, not {}", options.name, options.betas.size()));
    beta1_ = options.betas[0];
    beta2_ = options.betas[1];
  }

  std::vector<std::string> state_files() const override { return state_files_; }
  at::ScalarType state_type() const override { return state_type_; }
  bool keeps_previous() const override { return true; }

  // Random bits belong to one parameter, so each slice is a part if moments are rounded; else each run is.
  void step(std::span<Run> runs, double lr, double grad_scale, int64_t step) override {
    std::vector<kernels::StepPart> parts;
    for (const Run& run : runs) {
      const kernels::StepArgs args{.lr = lr * run.lr_scale,
                                   .beta1 = beta1_,
                                   .beta2 = beta2_,
                                   .eps = eps_,
                                   .weight_decay = run.weight_decay,
                                   .grad_scale = grad_scale,
                                   .step = step};
      if (state_type_ == at::kFloat) {
        parts.push_back(make_part(run, args, [](const at::Tensor& flat) { return flat; }));
        continue;
      }
      for (const nn::Slice& slice : run.slices) {
        parts.push_back(make_part(run, args, [&](const at::Tensor& flat) { return run.part(flat, slice); }));
        parts.back().rounding = rounding_bits(slice, step);
      }
    }
    if (!parts.empty()) kernel_(parts);
  }

 private:
  // `of`: what the part has of one of the run's flat tensors.
  template <class Of>
  static kernels::StepPart make_part(const Run& run, const kernels::StepArgs& args, const Of& of) {
    const auto squares = [&](const Buffers& all) {
      return all.state.size() > 1 ? of(all.state[1]) : at::Tensor();
    };
    kernels::StepPart part{.weight = of(run.now.master),
                           .grad = of(run.grad),
                           .exp_avg = of(run.now.state[0]),
                           .exp_avg_sq = squares(run.now),
                           .compute = std::nullopt,
                           .args = args,
                           .previous = std::nullopt};
    if (run.compute) part.compute = of(*run.compute);
    if (const auto& previous = run.previous)
      part.previous = {of(previous->master), of(previous->state[0]), squares(*previous)};
    return part;
  }

  const StepKernel& kernel_;
  std::vector<std::string> state_files_;
  at::ScalarType state_type_;
  double beta1_ = 0, beta2_ = 0, eps_;
};

// The biases that balance experts without a loss (Wang et al., arXiv 2408.15664): each moves by `rate`
// against the sign of its "gradient", which is its expert's load less the mean load, times the experts.
// Neither learning rate nor decay nor gradient scale act on it, and it has no state.
class Balance final : public Update {
 public:
  explicit Balance(double rate) : rate_(rate) {}

  std::vector<std::string> state_files() const override { return {}; }

  // A handful of values: ATen's operators, each of which rounds once, wherever an element lies.
  void step(std::span<Run> runs, double /*lr*/, double /*grad_scale*/, int64_t /*step*/) override {
    for (Run& run : runs) {
      run.now.master.sub_(at::sign(run.grad).mul_(rate_));
      if (run.compute) run.compute->copy_(run.now.master);
    }
  }

 private:
  double rate_;
};

// AdamW (Loshchilov & Hutter, arXiv 1711.05101).
std::unique_ptr<Update> make_adamw(const OptimizerSection& options, const MakeMatrixExchange& = {},
                                   const at::TensorOptions& = {}) {
  return std::make_unique<MomentUpdate>(
      kernels::adamw, std::vector<std::string>{"adamw.exp_avg", "adamw.exp_avg_sq"}, options);
}

// Lion (Chen et al., arXiv 2302.06675): half of AdamW's state. The authors give it 3 to 10 times less
// learning rate and as much more weight decay than AdamW, and betas 0.9 and 0.99 (0.95 and 0.98 if training
// is unstable).
std::unique_ptr<Update> make_lion(const OptimizerSection& options, const MakeMatrixExchange&,
                                  const at::TensorOptions&) {
  return std::make_unique<MomentUpdate>(kernels::lion, std::vector<std::string>{"lion.exp_avg"}, options);
}

// Bytes for each parameter that this rank steps.
struct OptimizerFootprint {
  int64_t state = 0;     // the state, held between steps
  int64_t previous = 0;  // the copy of masters and state that keep_previous() holds
  double moved = 0;      // what a step reads and writes
  double kept = 0;       // what a step writes besides, with keep_previous()
};

// A step moves 34 bytes a parameter: master and two moments read and written (24), the gradient read, and
// zeroed before the next step (8), the compute weight written (2).
constexpr OptimizerFootprint adamw_footprint{.state = 8, .previous = 12, .moved = 34, .kept = 12};

// Master and average read and written (16), the gradient read and zeroed (8), the compute weight written.
constexpr OptimizerFootprint lion_footprint{.state = 4, .previous = 8, .moved = 26, .kept = 8};

// Muon on a matrix: the gradient read twice, and zeroed (12), momentum read twice and written (12), master
// read and written (8), compute weight written (2), operand and result written and read (8). To keep what is
// overwritten, it is copied.
constexpr OptimizerFootprint muon_footprint{.state = 4, .previous = 8, .moved = 42, .kept = 16};

// An optimizer's update. AdamW steps what it does not take.
struct Entry {
  std::string_view name;  // optimizer.name
  std::unique_ptr<Update> (*make)(const OptimizerSection&, const MakeMatrixExchange&,
                                  const at::TensorOptions& compute);
  OptimizerFootprint footprint;
  bool (*takes)(nn::Role, size_t dims) = nullptr;  // null: all
};

// The one list to extend when an optimizer is added.
constexpr Entry entries[] = {
    {.name = "adamw", .make = make_adamw, .footprint = adamw_footprint},
    {.name = "muon", .make = make_muon, .footprint = muon_footprint, .takes = muon_takes},
    {.name = "lion", .make = make_lion, .footprint = lion_footprint},
};

const Entry& find(const std::string& name) {
  const auto* const found = std::ranges::find(entries, name, &Entry::name);
  if (found != std::end(entries)) return *found;
  std::vector<std::string_view> names;
  for (const Entry& entry : entries) names.push_back(entry.name);
  throw UsageError(fmt::format("optimizer.name: \"{}\" is not one of {}", name, fmt::join(names, ", ")));
}

bool decays(nn::Role role) {
  return role != nn::Role::norm && role != nn::Role::bias;
}

// Does the entry take a parameter, or a kind of them?
template <class P>
bool is_first(const Entry& entry, const P& parameter) {
  return entry.takes == nullptr || entry.takes(parameter.role, parameter.shape.size());
}

template <class P>
bool is_muon(const Entry& entry, const P& parameter) {
  return entry.takes == muon_takes && muon_takes(parameter.role, parameter.shape.size());
}

// Balances have no state, and are a handful. An average of weights is read and written, and the masters read
// once more; to keep what is overwritten, it is copied.
OptimizerFootprint footprint_of(const OptimizerSection& options, const ParameterKind& kind) {
  if (kind.role == nn::Role::balance) return {};
  const Entry& entry = find(options.name);
  OptimizerFootprint each = is_first(entry, kind) ? entry.footprint : adamw_footprint;
  if (options.state_dtype == config::Dtype::bf16) {
    const int64_t saved = each.state / 2;
    each.state -= saved;
    each.previous -= saved;
    each.moved -= static_cast<double>(2 * saved);
    each.kept -= static_cast<double>(saved);
  }
  if (options.ema_decay > 0) {
    each.state += 4;
    each.previous += 4;
    each.moved += 12;
    each.kept += 8;
  }
  return each;
}

// What the job says of one parameter that learns by gradients.
Rule rule_of(const OptimizerSection& options, const Entry& entry, const nn::ParameterSpec& spec) {
  const bool muon = is_muon(entry, spec);
  Rule rule{.update = is_first(entry, spec) ? size_t{0} : size_t{1},
            .lr_scale = muon ? options.muon_lr_scale : 1,
            .weight_decay = decays(spec.role) ? options.weight_decay : 0};
  if (muon) rule.weight_decay = options.muon_weight_decay.value_or(options.weight_decay);
  if (const config::OptimizerGroup* group = find_group(options.groups, spec)) {
    rule.lr_scale *= group->lr_scale;
    rule.weight_decay = group->weight_decay.value_or(rule.weight_decay);
  }
  return rule;
}

// The type that layers compute in, and the device. Every rank of a stage finds the same.
at::TensorOptions compute_options(std::span<nn::Buffer* const> shards) {
  for (const nn::Buffer* shard : shards) {
    if (shard->compute.defined()) return shard->compute.options();
  }
  return shards.empty() ? at::TensorOptions().dtype(at::kFloat) : shards.front()->master.options();
}

// While the ranks work on one round of matrices, they exchange the operands of the next and the results of
// the one before.
double workspace_of(int64_t largest, double parts, double ranks) {
  if (largest == 0 || ranks == 1) return static_cast<double>(largest);
  const double owned = std::max(static_cast<double>(largest), static_cast<double>(round_elements) / ranks);
  return 4 * owned + 3 * std::min(owned * ranks, parts);
}

}  // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSection& options,
                                          std::span<nn::Buffer* const> shards,
                                          const MakeMatrixExchange& make_exchange, double balance_rate) {
  const Entry& entry = find(options.name);
  std::vector<std::unique_ptr<Update>> updates;
  updates.push_back(entry.make(options, make_exchange, compute_options(shards)));
  if (entry.takes != nullptr) updates.push_back(make_adamw(options));
  const size_t balance = updates.size();
  updates.push_back(std::make_unique<Balance>(balance_rate));
  return std::make_unique<Optimizer>(
      shards, std::move(updates),
      [&](const nn::ParameterSpec& spec) {
        return spec.role == nn::Role::balance ? Rule{.update = balance} : rule_of(options, entry, spec);
      },
      options.ema_decay);
}

std::vector<ParameterKind> parameter_kinds(std::span<const nn::ParameterSpec* const> specs) {
  std::vector<ParameterKind> kinds;
  for (const nn::ParameterSpec* spec : specs) {
    ParameterKind kind{.role = spec->role,
                       .shape = spec->shape,
                       .local = c10::multiply_integers(spec->local_shape()),
                       .count = 1};
    const auto known = std::ranges::find_if(kinds, [&](const ParameterKind& other) {
      return other.role == kind.role && other.shape == kind.shape && other.local == kind.local;
    });
    if (known != kinds.end()) {
      ++known->count;
    } else {
      kinds.push_back(std::move(kind));
    }
  }
  return kinds;
}

OptimizerShare optimizer_share(const OptimizerSection& options, std::span<const ParameterKind> kinds,
                               at::ScalarType compute, int64_t shards, int64_t replicas) {
  const Entry& entry = find(options.name);
  const auto sharers = static_cast<double>(shards);
  const double ranks = sharers * static_cast<double>(replicas);
  const auto element = static_cast<int64_t>(c10::elementSize(compute));
  const bool keeps = options.post_validation;
  OptimizerShare share;
  int64_t largest = 0, products = 0;  // elements, bytes
  double parts = 0;                   // elements
  for (const ParameterKind& kind : kinds) {
    const auto local = static_cast<double>(kind.local * kind.count);
    const OptimizerFootprint each = footprint_of(options, kind);
    share.held += static_cast<double>(each.state + (keeps ? each.previous : 0)) * local / sharers;
    share.moved += (each.moved + (keeps ? each.kept : 0)) * local / sharers;
    if (!is_muon(entry, kind)) continue;
    const int64_t rows = kind.shape[0], cols = kind.shape[1];
    largest = std::max(largest, rows * cols);
    products = std::max(products, orthogonalise_bytes(rows, cols, element));
    parts += local / sharers;
    share.flops += orthogonalise_flops(rows, cols) * local / static_cast<double>(rows * cols) / ranks;
  }
  const double bytes = parts * static_cast<double>(element);
  share.sent = ranks > 1 ? bytes / static_cast<double>(replicas) : 0;
  share.received = ranks > 1 ? bytes : 0;
  share.workspace =
      static_cast<double>(element) * workspace_of(largest, parts, ranks) + static_cast<double>(products);
  return share;
}

}  // namespace pptrain::optim
