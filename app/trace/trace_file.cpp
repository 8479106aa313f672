#include "app/trace/trace_file.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "app/plan/plan.h"
#include "core/base/error.h"
#include "core/base/special_file.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/config/differences.h"
#include "core/config/loader.h"
#include "core/metrics/step_record.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::app {

namespace {

using Json = nlohmann::ordered_json;

// The words of trace.json.
constexpr const char* trace_format = "pptrain trace 2";

// Every key, for the writer and the reader. The first are Chrome's.
namespace keys {
constexpr const char* events = "traceEvents";
constexpr const char* other = "otherData";
constexpr const char* phase = "ph";
constexpr const char* name = "name";
constexpr const char* category = "cat";
constexpr const char* process = "pid";
constexpr const char* thread = "tid";
constexpr const char* time = "ts";
constexpr const char* duration = "dur";
constexpr const char* arguments = "args";
constexpr const char* stage = "stage";
constexpr const char* microbatch = "microbatch";
constexpr const char* step = "step";
constexpr const char* paired = "paired";  // half of an overlapped pair, whose exchanges may be hidden
constexpr const char* format = "format";
constexpr const char* job = "job";              // TOML
constexpr const char* schedule = "schedule";    // its name
constexpr const char* placement = "placement";  // loop | v
constexpr const char* layers = "layers_per_stage";
constexpr const char* device = "device";
constexpr const char* steps = "steps";
constexpr const char* step_time = "step_time_s";
constexpr const char* kernels = "kernels";
}  // namespace keys

// Categories other than those of actions (schedule::trace_category).
constexpr const char* phase_category = "phase";
constexpr const char* wait_category = "wait";

// --- writing

class TraceFile {
 public:
  TraceFile(const Plan& plan, const std::vector<std::vector<StepTrace>>& ranks)
      : mesh_(plan.mesh), s_(plan.schedule), ranks_(ranks) {
    origin_ = ranks[0][0].span.start;
    for (const auto& steps : ranks) origin_ = std::min(origin_, steps[0].span.start);
  }

  std::string events() {
    add({{keys::phase, "M"},
         {keys::name, "process_name"},
         {keys::process, 0},
         {keys::arguments, {{keys::name, "pptrain"}}}});
    for (size_t rank = 0; rank < ranks_.size(); ++rank) add_rank(static_cast<int>(rank));
    return text_;
  }

 private:
  void add(const Json& event) { text_ += (text_.empty() ? "" : ",\n") + event.dump(); }

  // Whole nanoseconds, so that neighbours stay neighbours.
  double microseconds(double seconds) const { return std::round((seconds - origin_) * 1e9) / 1e3; }

  Json event(const char* phase, const std::string& name, const std::string& category, double time) const {
    return {{keys::phase, phase}, {keys::name, name},    {keys::category, category},
            {keys::process, 0},   {keys::thread, rank_}, {keys::time, microseconds(time)}};
  }

  Json complete(const std::string& name, const std::string& category, const schedule::Span& span) const {
    Json json = event("X", name, category, span.start);
    json[keys::duration] = std::round((microseconds(span.end) - microseconds(span.start)) * 1e3) / 1e3;
    return json;
  }

  void add_rank(int rank) {
    rank_ = rank;
    const int pipeline_rank = mesh::coordinate(mesh_, rank, mesh::Axis::pp);
    const int replicas = mesh_.world_size() / mesh_.pp;
    replica_ = rank % replicas;  // pp is the outermost axis
    const std::vector<int> stages = s_.stages_of(pipeline_rank);
    std::string track =
        fmt::format("rank {} (stage{} {})", rank, stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
    if (replicas > 1) track += fmt::format(", replica {}", replica_);
    add({{keys::phase, "M"},
         {keys::name, "thread_name"},
         {keys::process, 0},
         {keys::thread, rank},
         {keys::arguments, {{keys::name, track}}}});
    for (const StepTrace& step : ranks_[rank]) {
      size_t next = 0;
      for (const schedule::Action& action : s_.actions[pipeline_rank]) {
        const bool paired = action.kind == schedule::ActionKind::overlapped_pair;
        for (const schedule::Action& part : schedule::timed_actions({action}))
          add_action(part, paired, step.actions.at(next++), step.step);
      }
      for (const PhaseSpan& phase : step.phases) {
        Json json = complete(name(phase.phase), phase_category, phase.span);
        json[keys::arguments] = {{keys::step, step.step}};
        add(json);
      }
    }
  }

  void add_action(const schedule::Action& action, bool paired, const ActionSpan& time, int64_t step) {
    const std::string text = schedule::to_string(action);
    Json args = {{keys::stage, action.stage}, {keys::microbatch, action.microbatch}, {keys::step, step}};
    if (paired) args[keys::paired] = true;
    const auto received = schedule::value_received(s_, action);
    if (received && time.span.start > time.wait) {
      Json wait = complete(fmt::format("wait for {}", text), wait_category, {time.wait, time.span.start});
      wait[keys::arguments] = args;
      add(wait);
    }
    Json json = complete(text, schedule::trace_category(action.kind), time.span);
    json[keys::arguments] = args;
    add(json);
    if (const auto value = schedule::value_sent(s_, action)) add_arrow("s", *value, time.span.end, step);
    if (received) add_arrow("f", *received, time.span.start, step);
  }

  // From the action that makes a value to the one that uses it, with one id.
  void add_arrow(const char* phase, const std::string& value, double time, int64_t step) {
    Json json = event(phase, "send", "transfer", time);
    json["id"] = fmt::format("{}:{}:{}", step, replica_, value);
    if (*phase == 'f') json["bp"] = "e";
    add(json);
  }

  const mesh::MeshShape& mesh_;
  const schedule::Schedule& s_;
  const std::vector<std::vector<StepTrace>>& ranks_;
  double origin_ = 0;
  int rank_ = 0, replica_ = 0;
  std::string text_;
};

// The job says all that a reader needs, except for a schedule from a file, which may be gone when the trace
// is read.
Json run_json(const Plan& plan, const std::string& device) {
  return {{keys::format, trace_format},
          {keys::job, config::to_toml(job_to_save(plan))},
          {keys::schedule, plan.schedule.name},
          {keys::placement, schedule::to_string(plan.schedule.placement)},
          {keys::layers, pipeline::layers_per_stage(plan.layers)},
          {keys::device, device}};
}

Json steps_json(const std::vector<std::vector<StepTrace>>& ranks,
                const std::vector<metrics::Bubble>& bubbles) {
  Json steps = Json::array();
  for (size_t i = 0; i < bubbles.size(); ++i) {
    double longest = 0;
    for (const auto& rank : ranks) longest = std::max(longest, rank[i].span.end - rank[i].span.start);
    Json step{{keys::step, ranks[0][i].step}, {keys::step_time, longest}};
    step.update(Json::parse(metrics::to_json(bubbles[i])));
    steps.push_back(step);
  }
  return steps;
}

// --- reading

void read_run(const Json& other, TraceSummary& summary) {
  if (other.at(keys::format) != trace_format)
    throw UsageError(fmt::format("its format is not \"{}\"", trace_format));
  summary.run = plan_base(config::read_saved_job(other.at(keys::job), "its job"));
  summary.schedule = other.at(keys::schedule);
  summary.placement = other.at(keys::placement) == "v" ? schedule::Placement::v : schedule::Placement::loop;
  const auto counts = other.at(keys::layers).get<std::vector<int64_t>>();
  summary.run.job.train.recompute.check(static_cast<int>(counts.size()));
  summary.layers = pipeline::explicit_layer_assignment(static_cast<int>(summary.run.model.layers),
                                                       static_cast<int>(counts.size()), counts);
  summary.device = other.at(keys::device);
}

// Returns the steps' numbers.
std::vector<int64_t> read_steps(const Json& steps, TraceSummary& summary) {
  std::vector<int64_t> numbers;
  std::vector<double> times;
  for (const Json& step : steps) {
    numbers.push_back(step.at(keys::step));
    times.push_back(step.at(keys::step_time));
    for (const auto& [key, value] : step.items()) {
      if (key.starts_with("bubble")) summary.bubble[key] += value.get<double>();
    }
  }
  if (numbers.empty()) throw UsageError("it has no steps");
  for (auto& [key, value] : summary.bubble) value /= static_cast<double>(numbers.size());
  summary.step_time = median(times);
  return numbers;
}

void read_events(const Json& events, const std::vector<int64_t>& steps, TraceSummary& summary) {
  const auto ranks = static_cast<size_t>(summary.run.mesh.world_size());
  const double count = static_cast<double>(steps.size());
  summary.ranks.resize(ranks);
  summary.stages.resize(summary.layers.size());
  const std::string communication = schedule::trace_category(schedule::ActionKind::reduce_grad);
  // By stage, category, and whether they are halves of pairs: halves count only if there are no others.
  std::map<std::tuple<size_t, std::string, bool>, std::pair<double, int>> actions;
  for (const Json& event : events) {
    if (event.at(keys::phase) != "X") continue;
    const Json& arguments = event.at(keys::arguments);
    if (std::ranges::find(steps, arguments.at(keys::step).get<int64_t>()) == steps.end()) continue;
    const std::string category = event.at(keys::category);
    const bool phase = category == phase_category;
    const std::string kind = phase ? event.at(keys::name).get<std::string>() : category;
    const double seconds = event.at(keys::duration).get<double>() * 1e-6;
    summary.ranks.at(event.at(keys::thread).get<size_t>())[kind] += seconds;
    if (phase) {
      summary.phases[kind] += seconds;
    } else if (category != wait_category && category != communication) {
      auto& [sum, number] =
          actions[{arguments.at(keys::stage).get<size_t>(), category, arguments.contains(keys::paired)}];
      sum += seconds;
      ++number;
    }
  }
  for (const auto& [key, times] : actions)
    summary.stages.at(std::get<0>(key)).try_emplace(std::get<1>(key), times.first / times.second);
  for (auto& [name, seconds] : summary.phases) seconds = seconds / count / static_cast<double>(ranks);
  for (auto& kinds : summary.ranks) {
    for (auto& [kind, seconds] : kinds) seconds /= count;
  }
}

TraceSummary summarise(const Json& trace) {
  const Json& other = trace.at(keys::other);
  TraceSummary summary;
  read_run(other, summary);
  read_events(trace.at(keys::events), read_steps(other.at(keys::steps), summary), summary);
  return summary;
}

}  // namespace

std::string render_trace_file(const Plan& plan, const std::string& device,
                              const std::vector<std::vector<StepTrace>>& ranks,
                              const std::vector<metrics::Bubble>& bubbles,
                              const std::vector<std::string>& kernels) {
  Json other = run_json(plan, device);
  other[keys::steps] = steps_json(ranks, bubbles);
  for (const std::string& of_rank : kernels) other[keys::kernels].push_back(Json::parse(of_rank));
  return fmt::format("{{\"displayTimeUnit\": \"ms\",\n\"{}\": {},\n\"{}\": [\n{}\n]}}\n", keys::other,
                     one_line(other), keys::events, TraceFile(plan, ranks).events());
}

TraceSummary read_trace(const std::filesystem::path& path) {
  const std::string kind = special_file(path);
  std::ifstream file;
  if (kind.empty()) file.open(path);
  if (!file.is_open()) {
    throw UsageError(fmt::format("{}: {}; expected a trace.json of profile.trace", path.string(),
                                 kind.empty() ? "cannot be read" : "is " + kind));
  }
  try {
    return summarise(Json::parse(file));
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: not a trace to take costs from: {}", path.string(), error.what()));
  } catch (const std::exception& error) {  // of the JSON library, or of a rank or stage that there is not
    throw UsageError(
        fmt::format("{}: not a trace of pptrain (profile.trace): {}", path.string(), error.what()));
  }
}

namespace {

schedule::Schedule empty_schedule(const TraceSummary& trace) {
  schedule::Schedule result;
  result.name = trace.schedule;
  result.ranks = trace.run.mesh.pp;
  result.stages_per_rank = static_cast<int>(trace.layers.size()) / result.ranks;
  result.sequence_slices = static_cast<int>(trace.run.job.distributed.pp_sequence_slices);
  result.microbatches = static_cast<int>(trace.run.job.train.grad_accum_steps) * result.sequence_slices;
  result.placement = trace.placement;
  result.actions.resize(static_cast<size_t>(result.ranks));
  return result;
}

// Is the event a pass of this step? Exchanges, waits and phases are not drawn.
bool is_pass(const nlohmann::json& event, int64_t step) {
  if (event.at(keys::phase) != "X") return false;
  const std::string category = event.at(keys::category);
  return (category == "forward" || category.starts_with("backward")) &&
         event.at(keys::arguments).at(keys::step) == step;
}

// Begins at time 0.
void finish_times(schedule::Simulation& times) {
  double begin = std::numeric_limits<double>::infinity(), end = 0;
  for (const auto& spans : times.spans) {
    for (const schedule::Span& span : spans) {
      begin = std::min(begin, span.start);
      end = std::max(end, span.end);
    }
  }
  times.step_time = end - begin;
  for (auto& spans : times.spans) {
    schedule::RankTime rank;
    for (schedule::Span& span : spans) {
      span = {span.start - begin, span.end - begin};
      rank.busy += span.end - span.start;
    }
    rank.steady = std::max(0.0, times.step_time - rank.busy);
    times.ranks.push_back(rank);
    times.ends.push_back(spans.empty() ? 0 : spans.back().end);
  }
}

TracedStep pick(const nlohmann::json& trace, const TraceSummary& summary, size_t most_actions) {
  TracedStep result{.step = trace.at(keys::other).at(keys::steps).back().at(keys::step),
                    .mesh = summary.run.mesh,
                    .schedule = empty_schedule(summary),
                    .times = {}};
  const mesh::MeshShape& mesh = summary.run.mesh;
  result.times.spans.resize(static_cast<size_t>(mesh.pp));
  const int64_t replicas = mesh.world_size() / mesh.pp;  // pp is the outermost axis
  size_t actions = 0;
  for (const nlohmann::json& event : trace.at(keys::events)) {
    if (!is_pass(event, result.step)) continue;
    const auto rank = event.at(keys::thread).get<int64_t>();
    if (rank % replicas != 0) continue;
    const auto place = static_cast<size_t>(rank / replicas);
    const double start = event.at(keys::time).get<double>() * 1e-6;
    result.schedule.actions.at(place).push_back(
        schedule::parse_action(event.at(keys::name).get<std::string>()));
    result.times.spans.at(place).push_back({start, start + event.at(keys::duration).get<double>() * 1e-6});
    if (++actions > most_actions)
      throw UsageError(fmt::format("its steps have more than {} passes", most_actions));
  }
  if (actions == 0) throw UsageError("it has no passes");
  finish_times(result.times);
  return result;
}

}  // namespace

TracedStep read_traced_step(const std::filesystem::path& path, size_t most_actions) {
  const TraceSummary summary = read_trace(path);
  std::ifstream file(path);
  try {
    return pick(nlohmann::json::parse(file), summary, most_actions);
  } catch (const std::exception& error) {
    throw UsageError(fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace pptrain::app
