#include "core/metrics/prometheus/prometheus_sink.h"

#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace pptrain::metrics {

namespace {

// The JSON library's judgement of what is UTF-8.
std::string valid_utf8(std::string_view text) {
  using Json = nlohmann::json;
  const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  return Json::parse(quoted).get<std::string>();
}

}  // namespace

std::string label_text(std::string_view value) {
  std::string result;
  for (const char c : valid_utf8(value)) {
    if (c == '\n') {
      result += "\\n";
    } else {
      if (c == '\\' || c == '"') result += '\\';
      result += c;
    }
  }
  return result;
}

std::string sample_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

void Exposition::add(std::span<const Figure> figures) {
  for (const Figure& figure : figures) {
    family(figure.name, figure.help);
    const Labels more =
        figure.label.empty() ? Labels{} : Labels{{std::string(figure.label), figure.label_value}};
    sample(figure.name, figure.value * figure.unit, more);
  }
}

void Exposition::add(std::string_view name, std::string_view help, double value, const Labels& more) {
  family(name, help);
  sample(name, value, more);
}

void Exposition::family(std::string_view name, std::string_view help) {
  if (name == last_) return;
  last_ = name;
  text_ += fmt::format("# HELP pptrain_{0} {1}\n# TYPE pptrain_{0} {2}\n", name, help,
                       name.ends_with("_total") ? "counter" : "gauge");
}

void Exposition::sample(std::string_view name, double value, const Labels& more) {
  std::string labels;
  const auto add_label = [&](const auto& label) {
    labels += fmt::format("{}{}=\"{}\"", labels.empty() ? "" : ",", label.first, label_text(label.second));
  };
  for (const auto& label : labels_) add_label(label);
  for (const auto& label : more) add_label(label);
  text_ += fmt::format("pptrain_{}{{{}}} {}\n", name, labels, sample_text(value));
}

namespace {

double unix_seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

Labels describe(const RunHeader& header) {
  Labels labels = {{"version", header.version},
                   {"host", header.host},
                   {"device", header.device},
                   {"world_size", std::to_string(header.world_size)}};
  for (const auto& [name, value] : header.layout) {
    if (name != "data") labels.emplace_back(name, value);
  }
  return labels;
}

}  // namespace

PrometheusSink::PrometheusSink(Listener listener, RunFigures run)
    : run_(std::move(run)), server_(std::move(listener), exposition_type, [this] { return page(); }) {}

void PrometheusSink::step(const StepRecord& record) {
  const std::lock_guard lock(mutex_);
  step_ = record;
}

void PrometheusSink::eval(const EvalRecord& record) {
  const std::lock_guard lock(mutex_);
  eval_ = record;
}

std::string PrometheusSink::page() const {
  std::unique_lock lock(mutex_);
  const std::optional<StepRecord> step = step_;
  const std::optional<EvalRecord> eval = eval_;
  lock.unlock();
  Exposition text({{"run", run_.dir}});
  text.add("run_info", "What runs, in labels.", 1, describe(run_.header));
  text.add("start_time_seconds", "When this start of the run began, since 1970.",
           unix_seconds(run_.header.time));
  text.add("uptime_seconds", "Since this start of the run began.",
           std::chrono::duration<double>(Clock::now() - begin_).count());
  text.add("start_step", "Step that this start goes on from.", static_cast<double>(run_.header.step));
  text.add("last_step", "Step that the run is to reach.", static_cast<double>(run_.last_step));
  const StepRecord& known = step ? *step : run_.so_far;
  text.add("step", "Last step done.", static_cast<double>(known.step));
  text.add(running_figures(known));
  if (step) {
    text.add("step_time_seconds", "When the last step was done, since 1970.", unix_seconds(step->time));
    text.add("step_skipped", "1 where the last step was skipped.", step->skipped ? 1 : 0);
    text.add(step_figures(*step));
  }
  if (eval) {
    text.add("eval_step", "Step of the last evaluation.", static_cast<double>(eval->step));
    text.add(eval_figures(*eval));
  }
  return text.text();
}

}  // namespace pptrain::metrics
