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

// distributed.reshard_after_forward, or what it is where it is not set.
bool reshards_after_forward(const config::DistributedSection& distributed) {
  return distributed.reshard_after_forward.value_or(distributed.pp == 1);
}

// What "auto" means on a device; other words as they are. GPUs are short of memory, not of time for what
// takes no product: of Llama 3 8B a third of the activations for some 1 % of the operations' bytes.
std::vector<std::string> resolved_recompute(std::vector<std::string> words, config::Device device) {
  if (words == std::vector<std::string>{"auto"}) words = {device == config::Device::cpu ? "none" : "cheap"};
  return words;
}

// Levels of microbatches in runs, of which the last ones are left out where they only repeat the first ones.
std::string word_of(std::span<const models::Recompute> levels) {
  size_t period = 1;
  while (!std::ranges::equal(levels.subspan(period), levels.first(levels.size() - period))) ++period;
  levels = levels.first(period);
  if (period == 1) return std::string(models::to_string(levels[0]));
  std::string word;
  for (size_t begin = 0; begin < period;) {
    size_t end = begin + 1;
    while (end < period && levels[end] == levels[begin]) ++end;
    word += fmt::format("{}{}:{}", begin > 0 ? "/" : "", models::to_string(levels[begin]), end - begin);
    begin = end;
  }
  return word;
}

// Of one stage: the most that it recomputes, and how many of its microbatches recompute less.
std::string describe_stage(std::span<const models::Recompute> levels, int64_t microbatches, int64_t slices) {
  const int64_t number = microbatches * slices;
  std::map<models::Recompute, int64_t, std::greater<>> counts;
  for (int64_t i = 0; i < number; ++i) ++counts[levels[static_cast<size_t>(i) % levels.size()]];
  std::string text(models::to_string(counts.begin()->first)), less;
  for (auto level = std::next(counts.begin()); level != counts.end(); ++level)
    less += fmt::format(
        "{}{}{} {}", less.empty() ? "" : ", ", level->second,
        less.empty() ? fmt::format(" of {} {}", number, slices > 1 ? "slices" : "microbatches") : "",
        models::to_string(level->first));
  return less.empty() ? text : fmt::format("{} ({})", text, less);
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

}  // namespace

PlanBase plan_base(const config::JobConfig& job) {
  mesh::MeshShape mesh{.ep = static_cast<int>(job.distributed.ep)};
  for (const mesh::Axis axis : mesh::axes) mesh.size(axis) = static_cast<int>(job.distributed.*key_of(axis));
  mesh::check_shape(mesh);
  PlanBase base{.job = job, .model = models::make_model_config(job.model, job.train.seq_len), .mesh = mesh};
  base.model.lora = job.lora;
  base.model.groups = job.optimizer.groups;
  base.job.train.recompute = resolved_recompute(job.train.recompute, job.run.device);
  base.chooses_recompute = base.job.train.recompute != job.train.recompute;
  if (job.distributed.pp_head == config::HeadPlace::automatic && !can_spread_head(job))
    base.job.distributed.pp_head = config::HeadPlace::last;
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
  check_recompute(base.job.train.recompute, lowered.stages());
  schedule::Schedule compute = schedule::compute_only(lowered);
  return {std::move(base), std::move(layers), std::move(lowered), std::move(compute)};
}

Layout layout_of(const PlanBase& base) {
  const config::DistributedSection& d = base.job.distributed;
  return {.mesh = base.mesh,
          .micro_batch_size = base.job.train.micro_batch_size,
          .grad_accum_steps = base.job.train.grad_accum_steps,
          .recompute = base.job.train.recompute,
          .reshard = reshards_after_forward(d),
          .every_microbatch = d.reduce_gradients == config::ReduceGradients::microbatch,
          .schedule = d.pp_schedule,
          .spread_head = d.pp_head == config::HeadPlace::spread,
          .sequence_slices = std::max<int64_t>(1, d.pp_sequence_slices),
          .stages_per_rank = d.pp_stages_per_rank};
}

PlanBase on_layout(PlanBase base, const Layout& layout) {
  if (base.mesh != layout.mesh) base = on_mesh(std::move(base), layout.mesh);
  config::TrainSection& train = base.job.train;
  train.micro_batch_size = layout.micro_batch_size;
  train.grad_accum_steps = layout.grad_accum_steps;
  train.recompute = layout.recompute;
  config::DistributedSection& d = base.job.distributed;
  if (layout.reshard != reshards_after_forward(d)) d.reshard_after_forward = layout.reshard;
  d.reduce_gradients =
      layout.every_microbatch ? config::ReduceGradients::microbatch : config::ReduceGradients::step;
  d.pp_schedule = layout.schedule;
  d.pp_head = layout.spread_head ? config::HeadPlace::spread : config::HeadPlace::last;
  d.pp_sequence_slices = layout.sequence_slices;
  d.pp_stages_per_rank = layout.stages_per_rank;
  return base;
}

Plan make_plan(PlanBase base, const Layout& layout, schedule::Schedule lowered) {
  base = on_layout(std::move(base), layout);
  config::DistributedSection& d = base.job.distributed;
  d.pp_split = {.text = "", .layers = pipeline::layers_per_stage(layout.layers)};
  d.pp_embedding_weight = d.pp_head_weight = 0;  // of an even split alone
  if (schedule_choice(layout.schedule) != ScheduleChoice::search) d.pp_memory_gb = 0;  // of auto and search
  return make_plan(std::move(base), std::move(lowered), layout.layers);
}

std::string choices_of(const Plan& plan) {
  const Layout layout = layout_of(plan);
  return nlohmann::json{{"recompute", layout.recompute},
                        {"schedule", layout.schedule},
                        {"spread_head", layout.spread_head},
                        {"sequence_slices", layout.sequence_slices},
                        {"stages_per_rank", layout.stages_per_rank},
                        {"layers", pipeline::layers_per_stage(plan.layers)},
                        {"placement", plan.schedule.placement},
                        {"actions", schedule::write_csv(plan.schedule)},
                        {"searched", plan.searched},
                        {"named", plan.named},
                        {"named_time", plan.named_time},
                        {"keeps_schedule", plan.keeps_schedule},
                        {"recompute_memory", plan.recompute_memory}}
      .dump();
}

Plan with_choices(const Plan& stand_in, const std::string& choices) {
  const auto chosen = nlohmann::json::parse(choices);
  Layout layout = layout_of(stand_in);
  chosen.at("recompute").get_to(layout.recompute);
  chosen.at("schedule").get_to(layout.schedule);
  chosen.at("spread_head").get_to(layout.spread_head);
  chosen.at("sequence_slices").get_to(layout.sequence_slices);
  chosen.at("stages_per_rank").get_to(layout.stages_per_rank);
  schedule::Schedule lowered = schedule::parse_csv(chosen.at("actions").get<std::string>());
  lowered.name = layout.schedule;
  lowered.sequence_slices = static_cast<int>(layout.sequence_slices);
  chosen.at("placement").get_to(lowered.placement);  // which one rank's actions do not show
  layout.layers =
      pipeline::explicit_layer_assignment(static_cast<int>(stand_in.model.layers), lowered.stages(),
                                          chosen.at("layers").get<std::vector<int64_t>>());
  Plan plan = make_plan(stand_in, layout, std::move(lowered));
  chosen.at("searched").get_to(plan.searched);
  chosen.at("named").get_to(plan.named);
  chosen.at("named_time").get_to(plan.named_time);
  chosen.at("keeps_schedule").get_to(plan.keeps_schedule);
  chosen.at("recompute_memory").get_to(plan.recompute_memory);
  plan.reads_data = stand_in.reads_data;
  return plan;
}

std::vector<std::string> Layout::overrides(const config::JobConfig& job, bool whole) const {
  std::vector<std::string> keys;
  const auto add = [&](const char* key, const auto& value) {
    keys.push_back(fmt::format("{}={}", key, value));
  };
  if (whole) {
    for (const auto& [axis, size] : mesh.sizes())
      keys.push_back(fmt::format("distributed.{}={}", axis, size));
    if (mesh.size(mesh::Group::fsdp) > 1 || mesh.size(mesh::Group::efsdp) > 1)
      add("distributed.reshard_after_forward", reshard);
    if (mesh.size(mesh::Group::stage) > 1)
      add("distributed.reduce_gradients", every_microbatch ? "microbatch" : "step");
  }
  add("distributed.pp_schedule", schedule);
  add("distributed.pp_stages_per_rank", stages_per_rank);
  const config::HeadPlace head = spread_head ? config::HeadPlace::spread : config::HeadPlace::last;
  if (head != job.distributed.pp_head) add("distributed.pp_head", config::Word(head).text);
  if (sequence_slices != job.distributed.pp_sequence_slices)
    add("distributed.pp_sequence_slices", sequence_slices);
  add("distributed.pp_split", layers.size() == 1
                                  ? std::string("even")
                                  : fmt::format("{}", fmt::join(pipeline::layers_per_stage(layers), ",")));
  if (whole || micro_batch_size != job.train.micro_batch_size)
    add("train.micro_batch_size", micro_batch_size);
  if (whole || grad_accum_steps != job.train.grad_accum_steps)
    add("train.grad_accum_steps", grad_accum_steps);
  if (whole || recompute != job.train.recompute)
    add("train.recompute", fmt::format("{}", fmt::join(recompute, ",")));
  return keys;
}

int head_parts(const PlanBase& base) {
  return base.job.distributed.pp_head == config::HeadPlace::spread ? base.mesh.pp : 1;
}

bool shares_out_embedding(const PlanBase& base) {
  return head_parts(base) > 1 && !base.model.tied && !models::freezes(base.model) &&
         base.mesh.size(mesh::Group::fsdp) == 1 && !base.job.optimizer.post_validation &&
         lower_options(base).reduce == schedule::Reduce::step;
}

schedule::ShardOptions lower_options(const PlanBase& base) {
  const config::DistributedSection& d = base.job.distributed;
  const bool divided = base.mesh.size(mesh::Group::fsdp) > 1 || base.mesh.size(mesh::Group::efsdp) > 1;
  const bool every_microbatch =
      d.reduce_gradients == config::ReduceGradients::microbatch && base.mesh.size(mesh::Group::stage) > 1;
  return {.gather = !divided                    ? schedule::Gather::never
                    : reshards_after_forward(d) ? schedule::Gather::streamed
                                                : schedule::Gather::kept,
          .reduce = every_microbatch ? schedule::Reduce::microbatch : schedule::Reduce::step,
          .keep_pairs = hides_exchanges(base)};
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
  if (plan.keeps_schedule) {
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
          .sequence_slices = static_cast<int>(std::max<int64_t>(1, d.pp_sequence_slices))};
}

schedule::Schedule given_schedule(const config::JobConfig& job) {
  const std::string& given = job.distributed.pp_schedule;
  if (schedule_choice(given) != ScheduleChoice::file) return schedule::make_schedule(schedule_spec(job));
  schedule::Schedule schedule = schedule::load_schedule(
      given, static_cast<int>(std::max<int64_t>(1, job.distributed.pp_sequence_slices)));
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

void check_recompute_words(std::span<const std::string> words) {
  if (words.size() > 1 && std::ranges::find(words, "auto") != words.end())
    throw UsageError("auto is for all stages: give each its own word, or one auto");
}

void check_recompute(std::span<const std::string> words, int stages) {
  check_recompute_words(words);
  if (words.size() == 1 || words.size() == static_cast<size_t>(stages)) return;
  throw UsageError(
      fmt::format("{} words for {} stages: give one for all, or one for each", words.size(), stages));
}

std::vector<models::Recompute> microbatch_recompute(std::span<const std::string> words, int stage) {
  const std::string& word = words.size() == 1 ? words[0] : words[static_cast<size_t>(stage)];
  std::vector<models::Recompute> levels;
  for (size_t begin = 0; begin <= word.size();) {
    const size_t end = std::min(word.find('/', begin), word.size());
    const size_t colon = std::min(word.find(':', begin), end);
    const models::Recompute level = models::make_recompute(word.substr(begin, colon - begin));
    const size_t count = colon == end ? 1 : std::stoul(word.substr(colon + 1, end - colon - 1));
    levels.insert(levels.end(), count, level);
    begin = end + 1;
  }
  return levels;
}

models::Recompute stage_recompute(std::span<const std::string> words, int stage) {
  return std::ranges::max(microbatch_recompute(words, stage));
}

bool recomputes_by_microbatch(std::span<const std::string> words) {
  return std::ranges::any_of(words, [](const std::string& word) { return word.find(':') != word.npos; });
}

std::vector<std::string> recompute_words(std::span<const models::Recompute> stages) {
  std::vector<std::vector<models::Recompute>> levels;
  for (const models::Recompute stage : stages) levels.push_back({stage});
  return recompute_words(levels);
}

std::vector<std::string> recompute_words(std::span<const std::vector<models::Recompute>> stages) {
  std::vector<std::string> words;
  for (const std::vector<models::Recompute>& levels : stages) words.push_back(word_of(levels));
  if (std::ranges::adjacent_find(words, std::ranges::not_equal_to()) == words.end()) words.resize(1);
  return words;
}

std::string describe_recompute(std::span<const std::string> words, int64_t microbatches, int64_t slices) {
  std::string text;
  for (size_t begin = 0; begin < words.size();) {
    size_t end = begin + 1;
    while (end < words.size() && words[end] == words[begin]) ++end;
    if (!text.empty()) text += ", ";
    if (end - begin > 1) text += fmt::format("{} ", end - begin);
    text += describe_stage(microbatch_recompute(words, static_cast<int>(begin)), microbatches, slices);
    begin = end;
  }
  return text;
}

}  // namespace pptrain::app
