#include "app/forecast/cost_model.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "models/flops.h"
#include "parallel/comm/collectives.h"

namespace pptrain::app {
namespace {

// Elements of all weights of the group, or of those that learn.
double elements_of(const GroupFootprint& group, bool learning) {
  double elements = 0;
  if (!group.in_passes) return elements;
  for (const BufferFootprint& buffer : group.buffers)
    elements += learning && buffer.frozen ? 0 : static_cast<double>(buffer.elements);
  return elements;
}

// Measured and modelled seconds, summed over stages.
struct Sum {
  double measured = 0;
  double modelled = 0;
  void add(double of_run, double of_model) {
    measured += of_run;
    modelled += of_model;
  }
  bool any() const { return measured > 0 && modelled > 0; }
  double ratio() const { return any() ? measured / modelled : 1; }
};

// One of the job's microbatches as the passes of a rank on the device see it.
BatchShape batch_of(const PlanBase& base, const DeviceModel& device) {
  const config::TrainSection& train = base.job.train;
  return {.documents = train.micro_batch_size,
          .length = train.seq_len,
          .bfloat16 = train.dtype == config::Dtype::bf16,
          .device = device.gpu.is_gpu() ? at::kCUDA : at::kCPU,
          .gpu = device.gpu,
          .deterministic = train.deterministic,
          .mesh = seen_by_passes(base.mesh),
          .cp_kind = base.job.distributed.cp_kind,
          .sequence_slices = static_cast<int>(base.job.distributed.slices()),
          .loss_terms = loss_terms(train),
          .overlap = train.overlap_weight_gradients && base.job.run.device != config::Device::cpu};
}

const GroupLink& link_of(const MeshLinks& links, kernels::Wire wire) {
  switch (wire) {
    case kernels::Wire::tp:
      return links.along(mesh::Axis::tp);
    case kernels::Wire::cp:
      return links.along(mesh::Axis::cp);
    case kernels::Wire::ep:
      return links.of(mesh::Group::ep);
  }
  throw Error("unknown wire");
}

// Calls visit(seconds of a pass, seconds of an exchange within it) for all that are `within` a stage's
// passes.
template <typename Visit>
void for_each_exchange(schedule::PerPass<double>& time, const StageExchange& within, const Visit& visit) {
  for (double* pass : {&time.forward, &time.backward, &time.backward_input}) visit(*pass, within.gather);
  for (double* pass : {&time.backward, &time.backward_weight}) visit(*pass, within.reduce());
  visit(time.backward_weight, within.adapters);
}

models::StageSlice blocks_of(const models::StageSlice& slice) {
  return {.index = 0,
          .first_layer = slice.first_layer,
          .end_layer = slice.end_layer,
          .embedding = false,
          .head = false};
}

}  // namespace

mesh::MeshShape seen_by_passes(const mesh::MeshShape& mesh) {
  // Keeps only the data ranks that the experts' group needs.
  const int inner = mesh.size(mesh::Group::replica) / mesh.dp_shard;
  mesh::MeshShape seen = mesh;
  seen.pp = seen.dp_replicate = 1;
  seen.dp_shard = mesh.ep / std::gcd(mesh.ep, inner);
  return seen;
}

FootprintCache::FootprintCache(const models::ModelConfig& model)
    : model_(model), attention_length_(models::attention_length(model)) {}

std::shared_ptr<const FootprintCache::Each> FootprintCache::of(BatchShape batch) {
  batch.recompute = config::Recompute::none;
  batch.attention_length = attention_length_;
  const auto found = std::ranges::find_if(
      known_, [&](const auto& each) { return each->at(config::Recompute::none).batch() == batch; });
  if (found != known_.end()) return *found;
  Each each;
  for (const config::Recompute recompute : config::all_recomputes) {
    batch.recompute = recompute;
    each.emplace(recompute, Footprints(model_, batch));
  }
  return known_.emplace_back(std::make_shared<const Each>(std::move(each)));
}

std::shared_ptr<const MeshLinks> make_links(const PlanBase& base, const DeviceModel& device,
                                            const mesh::MeshShape& mesh) {
  std::optional<mesh::GpuBlocks> blocks;
  if (device.gpu.is_gpu()) blocks = gpu_blocks(on_mesh(base, mesh));
  return std::make_shared<const MeshLinks>(device, mesh, blocks);
}

CostModel::CostModel(const PlanBase& base, const CostSource& source)
    : CostModel(*std::make_unique<FootprintCache>(base.model), base, source) {}

CostModel::CostModel(FootprintCache& cache, PlanBase base, const CostSource& source,
                     std::shared_ptr<const MeshLinks> links)
    : base_(std::move(base)),
      shard_(lower_options(base_)),
      device_(source.device),
      calibration_(source.calibration),
      sharing_(source.sharing),
      links_(links ? std::move(links) : make_links(base_, device_, base_.mesh)),
      footprints_(cache.of(batch_of(base_, device_))),
      flops_(batch().bfloat16 ? device_.bfloat16_flops : device_.float32_flops),
      bandwidth_(device_.memory_bandwidth) {
  if (base_.model.fp8 && !device_.is_cpu && device_.fp8_saving == 0) {
    throw UsageError(fmt::format(
        "train.fp8: the {} does not multiply in FP8, which GPUs do from Ada and Hopper on", device_.name));
  }
  if (device_.is_cpu) {  // GEMMs are assumed to scale with a rank's threads
    flops_ *= static_cast<double>(base_.job.run.threads);
    bandwidth_ *= static_cast<double>(base_.job.run.threads);
  }
}

schedule::Simulation CostModel::on_cores(const schedule::Schedule& schedule,
                                         schedule::Simulation alone) const {
  return on_shared_cores(schedule, std::move(alone), base_.mesh, base_.job.run.threads, sharing_);
}

PassTime CostModel::time(const kernels::Cost& cost) const {
  const double operations = cost.product_flops - cost.fp8_flops * device_.fp8_saving;
  const double products = std::max(operations / flops_, cost.weight_bytes / bandwidth_);
  const double attention = cost.attention_flops / (flops_ * device_.attention);
  PassTime time{.compute = products + attention + (cost.bytes - cost.weight_bytes) / bandwidth_ +
                           static_cast<double>(cost.kernels) * device_.launch};
  for (size_t w = 0; w < kernels::wire_count; ++w) {
    const auto wire = static_cast<kernels::Wire>(w);
    const kernels::Traffic& traffic = cost.on(wire);
    const GroupLink& link = link_of(*links_, wire);
    const auto messages = static_cast<double>(traffic.messages);
    // Tensor-parallel ranks sum and gather.
    const double seconds = wire == kernels::Wire::tp ? link.shared_seconds(traffic.bytes, messages)
                                                     : link.seconds(traffic.bytes, messages);
    const bool behind_attention =
        wire == kernels::Wire::cp && batch().cp_kind == models::ContextKind::ring && !device_.is_cpu;
    time.hidden[w] = behind_attention ? std::min(seconds, attention) : 0;
    time.exposed[w] = seconds - time.hidden[w];
  }
  return time;
}

config::Recompute CostModel::recompute_of(const models::StageSlice& slice) const {
  return base_.job.train.recompute.most(slice.index);
}

schedule::StageBytes CostModel::bytes(const models::StageSlice& slice, config::Recompute recompute) const {
  const StageFootprint& own = footprint(slice, recompute);
  return pass_bytes(own, held_bytes(own, base_.mesh, shard_));
}

std::vector<const StageForecast*> CostModel::of_microbatches(const pipeline::LayerAssignment& layers,
                                                             int stage) const {
  std::vector<const StageForecast*> forecasts;
  for (const config::Recompute recompute : base_.job.train.recompute.levels(stage))
    forecasts.push_back(&of(slice(layers, stage), recompute));
  return forecasts;
}

const StageForecast& CostModel::of(const models::StageSlice& slice, config::Recompute recompute) const {
  const std::pair kind(footprints_->at(recompute).kind_of(slice), recompute);
  if (const auto known = known_.find(kind); known != known_.end()) return known->second;
  return known_
      .emplace(kind, StageForecast{.passes = passes(slice, recompute),
                                   .cost = stage(slice, recompute),
                                   .within = within_passes(slice),
                                   .beside = beside_passes(slice),
                                   .held = held_bytes(footprint(slice), base_.mesh, shard_),
                                   .bytes = bytes(slice, recompute),
                                   .optimizer = optimizer(slice),
                                   .sum_scratch = sum_scratch(slice)})
      .first->second;
}

// Scratch of the communicators' threads: for sums of the largest gradient buffer, and for what
// tensor-parallel ranks add up in passes.
int64_t CostModel::sum_scratch(const models::StageSlice& slice) const {
  if (base_.job.run.device != config::Device::cpu) return 0;  // NCCL's own buffers are not counted
  const StageFootprint& own = footprint(slice);
  int64_t dense = 0, experts = 0;
  for (const GroupFootprint& group : own.groups) {
    int64_t& largest = group.experts ? experts : dense;
    for (const BufferFootprint& buffer : group.buffers)
      largest = std::max(largest, buffer.frozen ? 0 : 4 * buffer.elements);
  }
  const auto scratch = [](int64_t bytes, const GroupLink& link) {
    const int64_t rows = link.together > 1 ? 2 * bytes : bytes;  // about comm::HostBlocks::most_rows
    return link.ranks > 1 ? std::min(rows, comm::most_sum_scratch(link.ranks)) : 0;
  };
  return scratch(dense, links_->of(mesh::Group::loss)) + scratch(experts, links_->of(mesh::Group::eloss)) +
         scratch(own.boundary * base_.mesh.tp, links_->along(mesh::Axis::tp));
}

// Uncalibrated seconds of a stage, split by what a calibration scales.
struct CostModel::Parts {
  PassTime forward;  // of the blocks
  PassTime again;    // what the blocks' backward computes again
  PassTime input;
  PassTime weight;
  PassTime embedding_forward;
  PassTime embedding_weight;
  PassTime head;                         // in F: the whole head, or the final norm if the head is spread
  PassTime norm_input;                   // the norm of a spread head, in B or I
  PassTime head_forward, head_backward;  // S, T
  PassTime exchange;                     // of B at once, beyond `again`; computes nothing
};

// The embedding and the head each cost what a stage with them takes beyond one without.
CostModel::Parts CostModel::parts(const models::StageSlice& slice, config::Recompute recompute) const {
  const models::StageSlice blocks = blocks_of(slice);
  const Footprints& kept = footprints_->at(config::Recompute::none);
  const StageFootprint& own = kept.of(blocks);
  Parts parts{.forward = time(own.passes.forward.cost),
              .again = {},
              .input = time(own.passes.backward_input.cost),
              .weight = time(own.passes.backward_weight.cost),
              .embedding_forward = {},
              .embedding_weight = {},
              .head = {},
              .norm_input = {},
              .head_forward = {},
              .head_backward = {},
              .exchange = {}};
  parts.again = time(footprint(blocks, recompute).passes.backward_input.cost) - parts.input;
  if (slice.embedding) {
    models::StageSlice first = blocks;
    first.embedding = true;
    parts.embedding_forward = time(kept.of(first).passes.forward.cost - own.passes.forward.cost);
    parts.embedding_weight =
        time(kept.of(first).passes.backward_weight.cost - own.passes.backward_weight.cost);
  }
  if (slice.head) {
    models::StageSlice last = blocks;
    last.head = true;
    last.head_parts = slice.head_parts;
    if (slice.head_parts > 1) last.index = slice.head_parts;  // has no part of the head
    parts.head = time(kept.of(last).passes.forward.cost - own.passes.forward.cost);
    parts.norm_input = time(kept.of(last).passes.backward_input.cost - own.passes.backward_input.cost);
  }
  if (slice.has_head_part()) {
    models::StageSlice with_part = blocks;
    with_part.head_parts = slice.head_parts;
    parts.head_forward = time(kept.of(with_part).passes.head_forward.cost);
    parts.head_backward = time(kept.of(with_part).passes.head_backward.cost);
  }
  parts.exchange = exchange_of_backward(footprint(slice, recompute), parts);
  return parts;
}

// If B computes both gradients at once, two of three tensor-parallel exchanges overlap with the GEMMs of the
// other gradient: the second gather of rows, for the weight gradient, and the sum of the input gradient
// (core/nn/linear).
PassTime CostModel::exchange_of_backward(const StageFootprint& stage, const Parts& parts) const {
  PassTime exchange = time(stage.passes.backward.cost) - parts.again;
  exchange.compute = 0;
  constexpr auto tp = static_cast<size_t>(kernels::Wire::tp);
  const double behind =
      device_.is_cpu ? 0 : std::min(exchange.exposed[tp] * 2 / 3, parts.input.compute + parts.weight.compute);
  exchange.exposed[tp] -= behind;
  exchange.hidden[tp] += behind;
  return exchange;
}

// Microbatches differ only in what they recompute.
CostModel::Parts CostModel::mean_parts(const models::StageSlice& slice) const {
  Parts mean = parts(slice, recompute_of(slice));
  const auto levels = base_.job.train.recompute.levels(slice.index);
  if (levels.size() == 1) return mean;
  PassTime sum;
  const int64_t microbatches = base_.job.train.grad_accum_steps * batch().sequence_slices;
  for (int64_t i = 0; i < microbatches; ++i)
    sum += parts(slice, levels[static_cast<size_t>(i) % levels.size()]).again;
  mean.again = sum / static_cast<double>(microbatches);
  return mean;
}

StagePasses CostModel::passes(const models::StageSlice& slice, config::Recompute recompute) const {
  const Parts p = parts(slice, recompute);
  const PassTime again = p.again.scaled(calibration_.forward);
  const PassTime input = p.input.scaled(calibration_.backward_input);
  const PassTime weight = p.weight.scaled(calibration_.backward_weight);
  return {.forward =
              p.embedding_forward + p.forward.scaled(calibration_.forward) + p.head.scaled(calibration_.head),
          .backward = again + (input + weight).scaled(calibration_.backward).alone() +
                      p.embedding_weight.alone() + p.norm_input.alone() + p.exchange,
          .backward_input = again + input + p.norm_input,
          .backward_weight = weight + p.embedding_weight,
          .head_forward = p.head_forward.scaled(calibration_.head),
          .head_backward = p.head_backward.scaled(calibration_.head)};
}

schedule::StageCost CostModel::stage(const models::StageSlice& slice, config::Recompute recompute) const {
  const StagePasses p = passes(slice, recompute);
  using Seconds = schedule::PerPass<double>;
  schedule::StageCost cost{
      .time = Seconds::each([&](schedule::ActionKind pass) { return p.of(pass).total(); }),
      .wire = Seconds::each([&](schedule::ActionKind pass) { return wire(p.of(pass)); })};
  for_each_exchange(cost.time, within_passes(slice), [](double& pass, double within) { pass += within; });
  return cost;
}

double CostModel::wire(const PassTime& pass) const {
  double seconds = 0;
  for (size_t w = 0; w < kernels::wire_count; ++w) {
    const bool copies = device_.is_cpu && !link_of(*links_, static_cast<kernels::Wire>(w)).between_hosts;
    seconds += copies ? 0 : std::max(0.0, pass.exposed[w]);
  }
  return seconds;
}

// A sum after a microbatch also clears whole gradients, and adds the sum to this rank's shard.
StageExchange CostModel::within_passes(const models::StageSlice& slice) const {
  StageExchange within;
  if (!device_.is_cpu) return within;
  const StageExchange all = exchange(slice);
  if (shard_.gather == schedule::Gather::streamed) {
    within.gather = all.gather;
    within.adapters = all.adapters;
  }
  if (shard_.reduce != schedule::Reduce::microbatch) return within;
  double bytes = 0;
  for (const GroupFootprint& group : footprint(slice).groups) {
    for (const BufferFootprint& buffer : group.buffers)
      bytes += buffer.frozen
                   ? 0
                   : static_cast<double>(buffer.elements) * (8 + 12.0 / shards_of(group, base_.mesh));
  }
  within.sum = all.reduce() + bytes / bandwidth_;
  return within;
}

// The embedding comes first and takes almost no time. The head comes last, and its forward computes its
// gradients too. The embedding's gradient is ready last.
schedule::ExchangeCost CostModel::beside_passes(const models::StageSlice& slice) const {
  const StageExchange all = exchange(slice);
  const StageExchange within = within_passes(slice);
  const std::vector<GroupFootprint>& groups = footprint(slice).groups;
  schedule::ExchangeCost cost{
      .gather = within.gather > 0 ? 0 : all.gather,
      .reduce = within.reduce() > 0 ? 0 : all.reduce(),
      .groups = static_cast<int>(std::ranges::count_if(groups, &GroupFootprint::in_passes))};
  double elements = 0, learning = 0;
  for (const GroupFootprint& group : groups) {
    elements += elements_of(group, /*learning=*/false);
    learning += elements_of(group, /*learning=*/true);
  }
  if (slice.embedding) {
    cost.first_gather =
        (elements_of(groups[0], /*learning=*/false) + elements_of(groups[1], /*learning=*/false)) / elements;
    if (learning > 0) cost.last_reduce = elements_of(groups[0], /*learning=*/true) / learning;
  }
  if (slice.has_whole_head()) {
    const Parts p = parts(slice, recompute_of(slice));
    const double forward = passes(slice).forward.total();
    if (forward > 0) cost.last_time = p.head.scaled(calibration_.head).total() / forward;
  }
  return cost;
}

OptimizerCost& OptimizerCost::operator+=(const OptimizerCost& other) {
  seconds += other.seconds;
  held += other.held;
  workspace = std::max(workspace, other.workspace);
  return *this;
}

OptimizerCost CostModel::optimizer(const models::StageSlice& slice) const {
  const at::ScalarType compute = batch().bfloat16 ? at::kBFloat16 : at::kFloat;
  double moved = 0, products = 0, exchange = 0;
  OptimizerCost cost;
  for (const GroupFootprint& group : footprint(slice, config::Recompute::none).groups) {
    const GroupLink& link = links_->of(group.experts ? mesh::Group::eloss : mesh::Group::loss);
    const int shards = shards_of(group, base_.mesh);
    const optim::OptimizerShare share =
        optim::optimizer_share(base_.job.optimizer, group.parameters, compute, shards,
                               /*replicas=*/std::max(1, link.ranks * group.pipeline_shards / shards));
    moved += share.moved + 5 * static_cast<double>(group.fp8_bytes);  // bfloat16 read twice for each copy
    products += share.flops / flops_;
    if (share.sent > 0) exchange += link.seconds(share.sent + share.received, 2.0 * (link.ranks - 1));
    cost += {.seconds = 0,
             .held = static_cast<int64_t>(share.held),
             .workspace = static_cast<int64_t>(share.workspace)};
  }
  cost.seconds = (moved / bandwidth_ + std::max(products, exchange)) * calibration_.optimizer;
  return cost;
}

double CostModel::boundary_bytes() const {
  const models::StageSlice any{
      .index = 0, .first_layer = 0, .end_layer = 1, .embedding = false, .head = false};
  return static_cast<double>(footprint(any, config::Recompute::none).boundary);
}

double CostModel::transfer(int from, int to) const {
  return links_->transfer(from, to, boundary_bytes());
}

double CostModel::head_transfer(int last) const {
  return head_parts(base_) > 1 ? links_->transfer_to_all(last, boundary_bytes()) : 0;
}

double CostModel::embedding_exchange() const {
  if (!shares_out_embedding(base_)) return 0;
  const models::StageSlice first{
      .end_layer = 1, .embedding = true, .head_parts = head_parts(base_), .embedding_in_shards = true};
  double bytes = 0;
  for (const BufferFootprint& buffer : footprint(first, config::Recompute::none).groups.front().buffers)
    bytes += static_cast<double>(buffer.elements) * (4 + buffer.compute_bytes);
  double seconds = 0;
  for (int rank = 1; rank < base_.mesh.pp; ++rank)
    seconds += links_->transfer(0, rank, bytes / base_.mesh.pp);
  return seconds;
}

StageExchange CostModel::exchange(const models::StageSlice& slice) const {
  return stage_exchange(footprint(slice), *links_);
}

// Finds the scales one after the other: first the blocks' forward, which recomputation takes too, then the
// rest.
class Calibrator {
 public:
  Calibrator(const CostModel& plain, const Measurement& measured) : measured_(measured) {
    double optimizer = 0;
    for (const MeasuredStage& stage : measured.stages) {
      parts_.push_back(plain.mean_parts(stage.slice));
      within_.push_back(plain.within_passes(stage.slice));
      optimizer += plain.optimizer(stage.slice).seconds;
    }
    if (measured.optimizer > 0) result_.optimizer = measured.optimizer / optimizer;
    result_.overhead = measured.overhead;
  }

  Calibration run() {
    result_.forward = scale_of_forward();
    scale_backward();
    return result_;
  }

 private:
  using Parts = CostModel::Parts;

  // visit(measured stage without the exchanges within its passes, its modelled parts)
  template <typename Visit>
  void each(const Visit& visit) const {
    for (size_t i = 0; i < parts_.size(); ++i) {
      MeasuredStage stage = measured_.stages[i];
      for_each_exchange(stage.seconds, within_[i], subtract);
      visit(stage, parts_[i]);
    }
  }

  static void subtract(double& measured, double within) {
    if (measured > 0) measured = std::max(measured - within, measured / 10);
  }

  // The computing part of a measured time: without the modelled waits for other ranks and without the
  // embedding. At least a tenth, in case noise or a slow link leaves nothing.
  static double computing(double measured, double waiting, double other = 0) {
    return std::max(measured - waiting - other, measured / 10);
  }

  // From stages without the head, unless all have one.
  double scale_of_forward() const {
    const bool only_head = std::ranges::all_of(measured_.stages, [](const auto& s) { return s.slice.head; });
    Sum sum;
    each([&](const MeasuredStage& s, const Parts& p) {
      if (s.slice.head && !only_head) return;
      sum.add(
          computing(s.seconds.forward, p.forward.waiting() + p.head.waiting(), p.embedding_forward.total()),
          p.forward.compute + p.head.compute);
    });
    return sum.ratio();
  }

  void scale_backward() {
    Sum input, weight, joint, head;
    each([&](const MeasuredStage& s, const Parts& p) {
      const double again = p.again.scaled(result_.forward).total();
      const double embedding = p.embedding_weight.total();
      if (s.seconds.backward > 0) {
        joint.add(computing(s.seconds.backward, p.exchange.waiting(), again + p.embedding_weight.compute),
                  p.input.compute + p.weight.compute);
      }
      if (s.seconds.backward_input > 0)
        input.add(computing(s.seconds.backward_input, p.input.waiting(), again), p.input.compute);
      if (s.seconds.backward_weight > 0)
        weight.add(computing(s.seconds.backward_weight, p.weight.waiting(), embedding), p.weight.compute);
      if (s.slice.head) {
        const double others = p.embedding_forward.total() + p.forward.scaled(result_.forward).total();
        head.add(computing(s.seconds.forward, p.head.waiting(), others), p.head.compute);
      }
    });
    result_.head = head.ratio();
    result_.backward_input = input.any() ? input.ratio() : joint.ratio();
    result_.backward_weight = weight.any() ? weight.ratio() : joint.ratio();
    if (joint.any() && input.any()) result_.backward = scale_of_joint_backward();
  }

  double scale_of_joint_backward() const {
    Sum sum;
    each([&](const MeasuredStage& s, const Parts& p) {
      if (s.seconds.backward <= 0) return;
      const double others = p.again.scaled(result_.forward).total() + p.embedding_weight.compute;
      sum.add(computing(s.seconds.backward, p.exchange.waiting(), others),
              p.input.compute * result_.backward_input + p.weight.compute * result_.backward_weight);
    });
    return sum.ratio();
  }

  const Measurement& measured_;
  std::vector<Parts> parts_;
  std::vector<StageExchange> within_;
  Calibration result_;
};

Calibration calibrate(const PlanBase& run, const DeviceModel& device, const Measurement& measured) {
  if (measured.stages.empty()) throw UsageError("the measurement has no stages");
  for (const MeasuredStage& s : measured.stages) {
    if (s.seconds.forward <= 0 || (s.seconds.backward <= 0 && s.seconds.backward_input <= 0))
      throw UsageError("the measurement has a stage without a forward or a backward");
  }
  return Calibrator(CostModel(run, {.device = device}), measured).run();
}

}  // namespace pptrain::app
