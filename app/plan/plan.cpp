#include "app/plan/plan.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <utility>

#include "app/plan/run_files.h"
#include "core/base/error.h"
#include "core/config/differences.h"
#include "core/config/job_paths.h"
#include "core/config/loader.h"
#include "core/config/nearest.h"
#include "core/config/validate.h"
#include "core/io/checksum.h"
#include "models/learning.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/csv.h"

namespace pptrain::app {

namespace {

// The lines of a job written as TOML, each key with its section. Tables of a list are numbered.
Identity keys_of(const std::string& toml) {
  Identity keys;
  std::map<std::string, int> tables;
  std::string section, line;
  for (std::istringstream lines(toml); std::getline(lines, line);) {
    if (line.starts_with("[[")) {
      const std::string list = line.substr(2, line.find(']') - 2);
      section = fmt::format("{}[{}]", list, tables[list]++);
    } else if (line.starts_with('[')) {
      section = line.substr(1, line.find(']') - 1);
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos) {
      keys.emplace_back(fmt::format("{}.{}", section, line.substr(0, equals)), line.substr(equals + 3));
    }
  }
  return keys;
}

static_assert(config::axis_keys.size() == mesh::axis_count);  // both outermost first

int64_t config::DistributedSection::*key_of(mesh::Axis axis) {
  return config::axis_keys.at(static_cast<size_t>(axis)).size;
}

// What "auto" means on a device. GPUs are short of memory, not of time for what takes no product: of Llama 3
// 8B a third of the activations for some 1 % of the operations' bytes.
config::Recomputation resolved(const config::Recomputation& given, config::Device device) {
  if (!given.is_auto()) return given;
  return device == config::Device::cpu ? config::Recompute::none : config::Recompute::cheap;
}

// Is nothing in the job that a spread head does not go with?
bool can_spread_head(config::JobConfig job) {
  if (job.distributed.pp == 1) return false;
  job.distributed.pp_head = config::HeadPlace::spread;
  bool can = true;
  config::check_layout(job, [&](auto, const std::string&) { can = false; });
  return can;
}

// Do passes wait for exchanges that another pass can hide? On CPUs within a host processors copy.
bool hides_exchanges(const PlanBase& base) {
  const int64_t on_host = base.job.distributed.ranks_per_host;
  const bool leaves_host = on_host > 0 && on_host < base.mesh.world_size() / base.mesh.pp;
  return base.mesh.exchanges_in_passes() && (leaves_host || base.job.run.device == config::Device::cuda);
}

// `spread`: the pipeline ranks share the head; `shared_embedding`: also the embedding's state.
mesh::GpuExchanges exchanges_of(const PlanBase& base, bool spread, bool shared_embedding) {
  const bool tied = base.model.tied && base.mesh.pp > 1;
  // A spread head has inputs with terms of their gradients, and statistics.
  return {.one_to_all = spread ? 2 + tied + shared_embedding : 0,
          .of_ends = tied && !spread,
          .ring = base.job.distributed.cp_kind == config::ContextKind::ring,
          .experts = base.model.sparse.experts > 0,
          .kv_copies = base.mesh.tp > base.model.kv_heads,
          .pipeline_gather = spread && base.job.eval.generate_interval > 0};
}

// Do the links that it needs fit on a GPU?
bool can_link_embedding(const PlanBase& base) {
  return base.job.run.device == config::Device::cpu ||
         mesh::gpu_blocks(base.mesh, exchanges_of(base, /*spread=*/true, /*shared_embedding=*/true)).fit();
}

}  // namespace

PlanBase plan_base(const config::JobConfig& job) {
  mesh::MeshShape mesh{.ep = static_cast<int>(job.distributed.ep)};
  for (const mesh::Axis axis : mesh::axes) mesh.size(axis) = static_cast<int>(job.distributed.*key_of(axis));
  mesh::check_shape(mesh);
  PlanBase base{.job = job, .model = models::make_model_config(job.model, job.train.seq_len), .mesh = mesh};
  base.model.lora = job.lora;
  base.model.fp8 = job.train.fp8 != config::Fp8::off;
  base.model.fp8_weight_gradients = job.train.fp8 == config::Fp8::rowwise_all;
  base.model.groups = job.optimizer.groups;
  base.job.train.recompute = resolved(job.train.recompute, job.run.device);
  base.chooses_recompute = job.train.recompute.is_auto();
  base.bits_depend_on_pp = job.distributed.pp_head != config::HeadPlace::last ||
                           job.distributed.pp_sequence_slices == 0 ||
                           job.data.balance == config::Balance::schedule;
  if (job.distributed.pp_head != config::HeadPlace::automatic) return base;
  const mesh::GpuExchanges spread = exchanges_of(base, /*spread=*/true, /*shared_embedding=*/false);
  const bool has_links = job.run.device == config::Device::cpu || mesh::gpu_blocks(mesh, spread).fit();
  if (!has_links || !can_spread_head(job)) base.job.distributed.pp_head = config::HeadPlace::last;
  return base;
}

PlanBase on_mesh(PlanBase base, const mesh::MeshShape& mesh) {
  for (const mesh::Axis axis : mesh::axes) base.job.distributed.*key_of(axis) = mesh.size(axis);
  base.job.distributed.ep = mesh.ep;
  base.mesh = mesh;
  return base;
}

Plan make_plan(const config::JobConfig& job) {
  PlanBase base = plan_base(job);
  schedule::Schedule lowered = schedule::lower(given_schedule(job), lower_options(base));
  if (head_parts(base) > 1 && !lowered.spread_head)
    throw UsageError("the order of a spread head is in the run's schedule.csv, which the job does not name");
  pipeline::LayerAssignment layers = split_layers(job, lowered.stages());
  return make_plan(std::move(base), std::move(lowered), std::move(layers));
}

Plan make_plan(PlanBase base, schedule::Schedule lowered, pipeline::LayerAssignment layers) {
  base.job.train.recompute.check(lowered.stages());
  schedule::Schedule compute = schedule::compute_only(lowered);
  return {std::move(base), std::move(layers), std::move(lowered), std::move(compute)};
}

Plan with_microbatches(const Plan& plan, int64_t microbatches) {
  Plan result = plan;
  result.job.train.grad_accum_steps = microbatches;
  result.schedule = schedule::lower(given_schedule(result.job), lower_options(result));
  result.compute = schedule::compute_only(result.schedule);
  return result;
}

PlanBase on_layout(PlanBase base, const Layout& layout) {
  if (base.mesh != layout.mesh) base = on_mesh(std::move(base), layout.mesh);
  for (const LayoutFact& fact : layout_facts()) fact.write(layout, base.job);
  return base;
}

Plan make_plan(PlanBase base, const Layout& layout, schedule::Schedule lowered) {
  base = on_layout(std::move(base), layout);
  config::DistributedSection& d = base.job.distributed;
  d.pp_embedding_weight = d.pp_head_weight = 0;  // of an even split alone
  if (schedule_choice(layout.schedule) != ScheduleChoice::search) d.pp_memory_gb = 0;  // of auto and search
  return make_plan(std::move(base), std::move(lowered), layout.layers);
}

std::string choices_of(const Plan& plan) {
  return nlohmann::json{{"job", config::to_toml(plan.job)},
                        {"schedule", schedule::write_csv(plan.schedule)},
                        {"placement", plan.schedule.placement},
                        {"blocking_sends", plan.schedule.blocking_sends},
                        {"order", plan.order},
                        {"named", plan.named},
                        {"named_ratio", plan.named_ratio},
                        {"recompute_memory", plan.recompute_memory}}
      .dump();
}

Plan with_choices(const Plan& stand_in, const std::string& choices) {
  const auto chosen = nlohmann::json::parse(choices);
  const config::JobConfig job = config::read_saved_job(chosen.at("job").get<std::string>(), "rank 0's job");
  Layout layout = layout_of(stand_in.job, stand_in.mesh);
  for (const LayoutFact& fact : layout_facts()) {
    if (fact.chosen_at_start) fact.read(job, layout);
  }
  schedule::Schedule lowered = schedule::parse_csv(chosen.at("schedule").get<std::string>());
  lowered.name = layout.schedule;
  lowered.sequence_slices = static_cast<int>(layout.sequence_slices);
  chosen.at("placement").get_to(lowered.placement);  // which one rank's actions do not show
  chosen.at("blocking_sends").get_to(lowered.blocking_sends);
  layout.layers = split_layers(job, lowered.stages());
  Plan plan = make_plan(stand_in, layout, std::move(lowered));
  chosen.at("order").get_to(plan.order);
  chosen.at("named").get_to(plan.named);
  chosen.at("named_ratio").get_to(plan.named_ratio);
  chosen.at("recompute_memory").get_to(plan.recompute_memory);
  plan.reads_data = stand_in.reads_data;
  return plan;
}

int head_parts(const PlanBase& base) {
  return base.job.distributed.pp_head == config::HeadPlace::spread ? base.mesh.pp : 1;
}

bool shares_out_embedding(const PlanBase& base) {
  return head_parts(base) > 1 && !base.model.tied && !models::freezes(base.model) &&
         base.mesh.size(mesh::Group::fsdp) == 1 && !base.job.optimizer.post_validation &&
         lower_options(base).reduce == schedule::Reduce::step && can_link_embedding(base);
}

models::StageSlice slice_of(const PlanBase& base, const pipeline::LayerAssignment& layers, int stage,
                            bool trains) {
  return models::stage_slice(layers, stage, head_parts(base), trains && shares_out_embedding(base));
}

mesh::GpuBlocks gpu_blocks(const PlanBase& base) {
  return mesh::gpu_blocks(base.mesh, exchanges_of(base, head_parts(base) > 1, shares_out_embedding(base)));
}

nn::LossTerms loss_terms(const config::TrainSection& train) {
  return {.label_smoothing = train.label_smoothing, .z = train.z_loss};
}

// The halves of a pair take turns at exchanges, of which data ranks must have equally many. A vocabulary-
// parallel head has more for a longer list, behind which its gradient's sum begins.
schedule::ShardOptions lower_options(const PlanBase& base) {
  const config::DistributedSection& d = base.job.distributed;
  const bool divided = base.mesh.size(mesh::Group::fsdp) > 1 || base.mesh.size(mesh::Group::efsdp) > 1;
  const bool every_microbatch =
      d.reduce_gradients == config::ReduceGradients::microbatch && base.mesh.size(mesh::Group::stage) > 1;
  const bool several_lists =
      base.mesh.size(mesh::Group::batch) > 1 && base.job.data.lengths != config::Lengths::fixed;
  return {.gather = !divided       ? schedule::Gather::never
                    : d.reshards() ? schedule::Gather::streamed
                                   : schedule::Gather::kept,
          .reduce = every_microbatch ? schedule::Reduce::microbatch : schedule::Reduce::step,
          .keep_pairs = hides_exchanges(base) && !(every_microbatch && base.mesh.tp > 1 && several_lists),
          .blocking_sends = base.job.run.device == config::Device::cuda};
}

ScheduleChoice schedule_choice(const std::string& pp_schedule) {
  const std::string lower = config::to_lower(pp_schedule);
  if (lower == "auto") return ScheduleChoice::automatic;
  if (lower == "search") return ScheduleChoice::search;
  return lower.ends_with(".csv") ? ScheduleChoice::file : ScheduleChoice::name;
}

std::filesystem::path kept_schedule(const config::JobConfig& job) {
  return std::filesystem::path(job.run.dir) / schedule_name;
}

config::JobConfig job_to_save(const Plan& plan) {
  config::JobConfig job = plan.job;
  if (plan.keeps_schedule()) {
    job.distributed.pp_schedule = kept_schedule(job).string();
    job.distributed.pp_memory_gb = 0;
  }
  return config::with_absolute_paths(std::move(job));
}

schedule::ScheduleSpec schedule_spec(const config::JobConfig& job) {
  const config::DistributedSection& d = job.distributed;
  return {.name = d.pp_schedule,
          .ranks = static_cast<int>(d.pp),
          .microbatches = static_cast<int>(job.train.grad_accum_steps),
          .stages_per_rank = static_cast<int>(d.pp_stages_per_rank),
          .sequence_slices = static_cast<int>(d.slices())};
}

schedule::Schedule given_schedule(const config::JobConfig& job) {
  const std::string& given = job.distributed.pp_schedule;
  if (schedule_choice(given) != ScheduleChoice::file) return schedule::make_schedule(schedule_spec(job));
  schedule::Schedule schedule = schedule::load_schedule(given, static_cast<int>(job.distributed.slices()));
  const bool whole = job.distributed.pp_head == config::HeadPlace::last;
  return schedule.spread_head && whole ? schedule::whole_head(schedule) : schedule;
}

pipeline::LayerAssignment split_layers(const config::JobConfig& job, int stages) {
  const config::DistributedSection& d = job.distributed;
  const int layers = static_cast<int>(job.model.num_hidden_layers);
  const config::PipelineSplit& split = d.pp_split;
  if (!split.layers.empty()) return pipeline::explicit_layer_assignment(layers, stages, split.layers);
  if (split.text != "even") return pipeline::layout_layer_assignment(layers, stages, split.text);
  return pipeline::compute_layer_assignment(layers, stages, d.pp_embedding_weight, d.pp_head_weight);
}

Identity identity(const Plan& plan) {
  config::JobConfig job = plan.job;
  for (std::string* place : {&job.run.dir, &job.model.hf_dir, &job.data.cache, &job.data.tokenizer,
                             &job.checkpoint.resume, &job.distributed.pp_costs}) {
    place->clear();
  }
  for (std::vector<std::string>* paths : {&job.data.path, &job.data.val_path}) paths->clear();
  for (config::DataSource& source : job.data.sources) {
    source.path.clear();
    source.val_path.clear();
  }
  job.distributed.ranks_per_host = 0;  // predictions alone read these
  job.distributed.host_link_gbps = job.distributed.host_latency_us = 0;
  if (schedule_choice(job.distributed.pp_schedule) != ScheduleChoice::name)  // its actions count
    job.distributed.pp_schedule.clear();
  job.distributed.pp_memory_gb = 0;
  Identity result = keys_of(config::to_toml(job));
  result.emplace_back("layers of the stages",
                      fmt::format("{}", fmt::join(pipeline::layers_per_stage(plan.layers), "+")));
  io::Checksum actions;
  for (const std::vector<schedule::Action>& list : plan.schedule.actions) {
    std::string text;
    for (const schedule::Action& action : list) text += fmt::format("{},", schedule::to_string(action));
    text += '\n';
    actions.add(std::as_bytes(std::span(text)));
  }
  result.emplace_back("the schedule's actions", actions.hex());
  return result;
}

std::string fingerprint(const Identity& identity) {
  io::Checksum checksum;
  for (const auto& [name, value] : identity) {
    const std::string line = fmt::format("{} = {}\n", name, value);
    checksum.add(std::as_bytes(std::span(line)));
  }
  return checksum.hex();
}

std::string fingerprint(const Plan& plan) {
  return fingerprint(identity(plan));
}

}  // namespace pptrain::app
