#include "app/trace/trace_file.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/kernels/device_name.h"
#include "core/metrics/sinks.h"
#include "parallel/pipeline/split_layers.h"
#include "parallel/schedule/render/trace_names.h"

namespace pptrain::app {

namespace {

using Json = nlohmann::ordered_json;

class TraceFile {
 public:
  TraceFile(const RunContext& context, const schedule::Schedule& schedule,
            const std::vector<std::vector<StepTrace>>& ranks)
      : context_(context), s_(schedule), ranks_(ranks) {
    origin_ = ranks[0][0].span.start;
    for (const auto& steps : ranks) origin_ = std::min(origin_, steps[0].span.start);
  }

  std::string events() {
    add({{"ph", "M"}, {"name", "process_name"}, {"pid", 0}, {"args", {{"name", "pptrain"}}}});
    for (size_t rank = 0; rank < ranks_.size(); ++rank) add_rank(static_cast<int>(rank));
    return text_;
  }

 private:
  void add(const Json& event) { text_ += (text_.empty() ? "" : ",\n") + event.dump(); }

  // Whole nanoseconds, so that neighbours stay neighbours.
  double microseconds(double seconds) const { return std::round((seconds - origin_) * 1e9) / 1e3; }

  Json event(const char* phase, const std::string& name, const std::string& category, double time) const {
    return {{"ph", phase}, {"name", name}, {"cat", category},
            {"pid", 0},    {"tid", rank_}, {"ts", microseconds(time)}};
  }

  Json complete(const std::string& name, const std::string& category, const schedule::Span& span) const {
    Json json = event("X", name, category, span.start);
    json["dur"] = std::round((microseconds(span.end) - microseconds(span.start)) * 1e3) / 1e3;
    return json;
  }

  void add_rank(int rank) {
    rank_ = rank;
    const mesh::MeshShape& shape = context_.mesh.shape();
    const int pipeline_rank = mesh::coordinates(shape, rank)[static_cast<int>(mesh::Axis::pp)];
    replica_ = rank % (shape.world_size() / shape.pp);  // pp is the outermost axis
    const std::vector<int> stages = s_.stages_of(pipeline_rank);
    std::string track =
        fmt::format("rank {} (stage{} {})", rank, stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
    if (shape.world_size() > shape.pp) track += fmt::format(", replica {}", replica_);
    add({{"ph", "M"}, {"name", "thread_name"}, {"pid", 0}, {"tid", rank}, {"args", {{"name", track}}}});
    const std::vector<schedule::Action> actions = schedule::timed_actions(s_.actions[pipeline_rank]);
    for (const StepTrace& step : ranks_[rank]) {
      for (size_t i = 0; i < actions.size(); ++i) add_action(actions[i], step.actions.at(i), step.step);
      for (const PhaseSpan& phase : step.phases) {
        Json json = complete(name(phase.phase), "phase", phase.span);
        json["args"] = {{"step", step.step}};
        add(json);
      }
    }
  }

  void add_action(const schedule::Action& action, const ActionSpan& time, int64_t step) {
    const std::string text = schedule::to_string(action);
    const Json args = {{"stage", action.stage}, {"microbatch", action.microbatch}, {"step", step}};
    const auto received = schedule::value_received(s_, action);
    if (received && time.span.start > time.wait) {
      Json wait = complete("wait for " + text, "wait", {time.wait, time.span.start});
      wait["args"] = args;
      add(wait);
    }
    Json json = complete(text, schedule::trace_category(action.kind), time.span);
    json["args"] = args;
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

  const RunContext& context_;
  const schedule::Schedule& s_;
  const std::vector<std::vector<StepTrace>>& ranks_;
  double origin_ = 0;
  int rank_ = 0, replica_ = 0;
  std::string text_;
};

Json model_json(const models::ModelConfig& model) {
  return {{"arch", model.arch},         {"layers", model.layers},
          {"hidden", model.hidden},     {"intermediate", model.intermediate},
          {"heads", model.heads},       {"kv_heads", model.kv_heads},
          {"head_dim", model.head_dim}, {"vocab", model.vocab},
          {"tied", model.tied}};
}

// What a reader needs to take the times for costs of another run.
Json job_json(const RunContext& context, const schedule::Schedule& schedule,
              const std::vector<std::pair<int, int>>& layers) {
  const config::JobConfig& job = context.job;
  return {{"format", "pptrain trace 1"},
          {"schedule", schedule.name},
          {"placement", schedule::to_string(schedule.placement)},
          {"pp", schedule.ranks},
          {"dp_replicate", job.distributed.dp_replicate},
          {"stages_per_rank", schedule.stages_per_rank},
          {"layers_per_stage", pipeline::layers_per_stage(layers)},
          {"microbatches", schedule.microbatches},
          {"micro_batch_size", job.train.micro_batch_size},
          {"seq_len", job.train.seq_len},
          {"dtype", job.train.dtype},
          {"recompute", job.train.recompute},
          {"post_validation", job.optimizer.post_validation},
          {"device", context.device.is_cpu() ? "cpu" : kernels::device_name(context.device)},
          {"threads", job.run.threads},
          {"model", model_json(context.model)}};
}

Json steps_json(const std::vector<std::vector<StepTrace>>& ranks,
                const std::vector<metrics::Bubble>& bubbles) {
  Json steps = Json::array();
  for (size_t i = 0; i < bubbles.size(); ++i) {
    double longest = 0;
    for (const auto& rank : ranks) longest = std::max(longest, rank[i].span.end - rank[i].span.start);
    Json step{{"step", ranks[0][i].step}, {"step_time_s", longest}};
    step.update(Json::parse(metrics::to_json(bubbles[i])));
    steps.push_back(step);
  }
  return steps;
}

}  // namespace

std::string render_trace_file(const RunContext& context, const schedule::Schedule& schedule,
                              const std::vector<std::pair<int, int>>& layers,
                              const std::vector<std::vector<StepTrace>>& ranks,
                              const std::vector<metrics::Bubble>& bubbles) {
  Json other = job_json(context, schedule, layers);
  other["steps"] = steps_json(ranks, bubbles);
  return "{\"displayTimeUnit\": \"ms\",\n\"otherData\": " + other.dump() + ",\n\"traceEvents\": [\n" +
         TraceFile(context, schedule, ranks).events() + "\n]}\n";
}

}  // namespace pptrain::app
