#include <spdlog/fmt/fmt.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "app/run/run_status.h"
#include "core/base/printable.h"
#include "core/metrics/step_text.h"
#include "core/metrics/utc_time.h"

namespace pptrain::app {

namespace {

using Json = nlohmann::ordered_json;

void add(std::string& text, std::string_view name, const std::string& value) {
  text += fmt::format("{:<11} {}\n", name, value);
}

double seconds_of(std::chrono::system_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

std::string head(const std::filesystem::path& run_dir, const RunStatus& status) {
  std::string line = fmt::format("{}: {}", run_dir.string(), word_of(status.phase));
  if (status.holder) {
    line += fmt::format(", {} {} on {}, since {}", status.is_alive() ? "process" : "was process",
                        status.holder->pid, status.holder->host, status.holder->since);
  }
  if (status.phase == RunPhase::dead) line += "; it was killed, or its host went down: log.txt may say more";
  if (status.phase == RunPhase::cannot_tell)
    line += ": this file system cannot lock, so only the age of the news tells whether a run is there";
  return line + "\n";
}

void add_progress(std::string& text, const RunStatus& status) {
  const metrics::StepRecord& step = *status.step;
  const std::string total = status.steps ? fmt::format(" of {}", *status.steps) : "";
  add(text, "step", fmt::format("{}{}, epoch {:.3f}", step.step, total, step.epoch));
  add(text, "loss", fmt::format("{:.4f}", step.loss));
  if (status.step_time_s > 0) {
    add(text, "speed",
        fmt::format("{} tokens/s, {:.3g} s a step", metrics::with_commas(std::llround(status.tokens_per_s)),
                    status.step_time_s));
  }
  if (status.seconds_left) add(text, "time left", metrics::duration_text(*status.seconds_left));
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json();
}

}  // namespace

std::string status_text(const std::filesystem::path& run_dir, const RunStatus& status) {
  std::string text = head(run_dir, status);
  if (status.step) add_progress(text, status);
  if (status.evaluation) {
    add(text, "validation",
        fmt::format("loss {:.4f} at step {}", status.evaluation->loss, status.evaluation->step));
  }
  add(text, "checkpoint",
      fmt::format("{}{}{}", status.checkpoint.empty() ? "none" : status.checkpoint,
                  status.best.empty() ? "" : fmt::format(", the best is {}", status.best),
                  status.saving ? fmt::format("; saving step {}", *status.saving) : ""));
  if (status.age) add(text, "last news", metrics::duration_text(seconds_of(*status.age)) + " ago");
  if (!status.message.empty()) text += status.message + "\n";
  return printable(text);
}

std::string status_json(const std::filesystem::path& run_dir, const RunStatus& status) {
  Json json{{"run", run_dir.string()}, {"state", word_of(status.phase)}};
  if (status.holder) {
    json["pid"] = status.holder->pid;
    json["host"] = status.holder->host;
    json["since"] = status.holder->since;
  }
  if (status.steps) json["steps"] = *status.steps;
  if (status.step) {
    json["step"] = status.step->step;
    json["loss"] = number(status.step->loss);
    json["epoch"] = number(status.step->epoch);
    json["total_tokens"] = status.step->total_tokens;
    json["tokens_per_s"] = number(status.tokens_per_s);
    json["step_time_s"] = number(status.step_time_s);
  }
  if (status.seconds_left) json["seconds_left"] = *status.seconds_left;
  if (status.evaluation) {
    json["eval_step"] = status.evaluation->step;
    json["eval_loss"] = number(status.evaluation->loss);
  }
  if (!status.checkpoint.empty()) json["checkpoint"] = status.checkpoint;
  if (!status.best.empty()) json["best"] = status.best;
  if (status.saving) json["saving"] = *status.saving;
  if (status.age) json["news_age_s"] = seconds_of(*status.age);
  if (!status.message.empty()) json["message"] = status.message;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace pptrain::app
