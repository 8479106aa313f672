#include "app/run/run_status.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "app/plan/run_files.h"
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/io/paths.h"
#include "core/metrics/metrics_file.h"
#include "core/metrics/progress_text.h"
#include "core/metrics/step_record.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;
using SystemClock = std::chrono::system_clock;

namespace {

RunPhase phase_of(const LockState& lock, const std::optional<RunEnd>& end, const metrics::MetricsTail& tail) {
  if (lock.held == true) {
    const auto since = lock.holder ? metrics::parse_utc(lock.holder->since) : std::nullopt;
    return since && tail.last < *since ? RunPhase::starting : RunPhase::running;
  }
  if (end) return end->how;
  if (!lock.held) return RunPhase::cannot_tell;
  // A killed process leaves its name in the lock; one that ends by itself removes it. Without an end it ended
  // before it had begun, or the disk had no room for the file.
  return lock.holder ? RunPhase::dead : RunPhase::failed;
}

std::optional<int64_t> planned_steps(const fs::path& run_dir) {
  try {
    const std::optional<config::JobConfig> job = read_resolved_job(run_dir);
    return job ? std::optional(job->train.steps) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

void add_speed(const metrics::MetricsTail& tail, RunStatus& status) {
  if (tail.steps.empty()) return;
  metrics::TimeLeft left;
  std::vector<double> times;
  double seconds = 0;
  int64_t tokens = 0;
  for (const metrics::StepRecord& step : tail.steps) {
    if (!std::isfinite(step.step_time_s)) continue;
    times.push_back(step.step_time_s);
    left.step(step.step_time_s);
    left.pause(step.save_time_s);
    seconds += step.step_time_s;
    tokens += step.tokens;
  }
  if (times.empty()) return;
  const auto& evaluation = tail.evaluation;
  if (evaluation && evaluation->step >= tail.steps.front().step && std::isfinite(evaluation->time_s))
    left.pause(evaluation->time_s);
  status.step_time_s = median(std::move(times));
  status.tokens_per_s = seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  const bool goes_on = status.phase == RunPhase::running && status.steps;
  if (goes_on) status.seconds_left = left.estimate(*status.steps - tail.steps.back().step);
}

// A running save writes into .tmp_step_N. An older step's folder of such a name is being removed.
std::optional<int64_t> step_being_saved(const fs::path& checkpoints, int64_t newest) {
  std::error_code error;
  for (fs::directory_iterator entry(checkpoints, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with(checkpoint::temporary_prefix)) continue;
    name = name.substr(std::string_view(checkpoint::temporary_prefix).size());
    name = name.substr(0, name.find('.'));
    const auto step = checkpoint::parse_step_folder(name);
    if (step && *step > newest) return step;
  }
  return std::nullopt;
}

void add_checkpoints(const fs::path& run_dir, RunStatus& status) {
  const fs::path root = run_dir / "checkpoints";
  int64_t newest = -1;
  for (const auto& [step, folder] : checkpoint::list_step_folders(root)) {
    if (!io::is_there(folder / checkpoint::manifest_name)) continue;
    status.checkpoint = folder.filename().string();
    newest = step;
    break;
  }
  status.best = checkpoint::name_in(root / checkpoint::best_name);
  if (status.is_alive()) status.saving = step_being_saved(root, newest);
}

void require_run_dir(const fs::path& run_dir) {
  if (is_run_dir(run_dir)) return;
  throw UsageError(
      fmt::format("{}: {}. Give the run.dir of a job", run_dir.string(),
                  io::is_there(run_dir) ? "no run has used this folder" : "there is no such folder"));
}

}  // namespace

int status_exit_code(RunPhase phase) {
  constexpr std::array codes = {0, 0, 3, 3, 4, 4, 4, 1};  // in the order of RunPhase
  return codes.at(static_cast<size_t>(phase));
}

RunStatus read_status(const fs::path& run_dir) {
  require_run_dir(run_dir);
  // Reads the end after the lock: a run writes its end before it gives the lock up.
  LockState lock = look_at_lock(run_dir);
  const std::optional<RunEnd> end = read_run_end(run_dir);
  // A run may have begun in between, and removed the last one's end.
  if (!end && lock.held == false) lock = look_at_lock(run_dir);
  const metrics::MetricsTail tail = metrics::read_metrics_tail(run_dir / "metrics.jsonl");
  RunStatus status;
  status.phase = phase_of(lock, end, tail);
  if (status.is_alive() || status.phase == RunPhase::dead) status.holder = std::move(lock.holder);
  if (end && !status.is_alive()) status.message = end->message;
  if (status.phase == RunPhase::dead || status.phase == RunPhase::failed) {
    const std::string words = read_last_words(run_dir);
    status.message += (status.message.empty() || words.empty() ? "" : "\n") + words;
  }
  status.steps = planned_steps(run_dir);
  status.fork = read_fork(run_dir);
  status.pace = read_pace(run_dir);
  if (!tail.steps.empty()) status.step = tail.steps.back();
  status.evaluation = tail.evaluation;
  add_speed(tail, status);
  add_checkpoints(run_dir, status);
  if (tail.last != SystemClock::time_point{})
    status.age = std::max(SystemClock::duration::zero(), SystemClock::now() - tail.last);
  return status;
}

namespace {

using OrderedJson = nlohmann::ordered_json;

void add(std::string& text, std::string_view name, const std::string& value) {
  text += fmt::format("{:<11} {}\n", name, value);
}

std::string head(const std::filesystem::path& run_dir, const RunStatus& status) {
  std::string line = fmt::format("{}: {}", run_dir.string(), word_of(status.phase));
  if (status.holder) {
    line += fmt::format(", {} {} on {}, since {}", status.is_alive() ? "process" : "was process",
                        status.holder->pid, status.holder->host, status.holder->since);
  }
  if (status.phase == RunPhase::dead && status.message.empty())
    line += "; it was killed, or its host went down";
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
  if (status.pace) add(text, "pace", describe_pace(*status.pace));
  if (status.seconds_left) add(text, "time left", metrics::duration_text(*status.seconds_left));
}

OrderedJson pace_json(const PaceRecord& pace) {
  OrderedJson json{{"text", describe_pace(pace)}, {"reference_s", pace.reference}, {"slow", is_slow(pace)}};
  if (pace.planned > 0) json["planned_s"] = pace.planned;
  return json;
}

OrderedJson number(double value) {
  return std::isfinite(value) ? OrderedJson(value) : OrderedJson();
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
  if (status.fork)
    add(text, "forked from", fmt::format("step {} of {}", status.fork->step, status.fork->run.string()));
  if (status.age) add(text, "last update", metrics::duration_text(in_seconds(*status.age)) + " ago");
  if (!status.message.empty()) text += status.message + "\n";
  return printable(text);
}

bool is_run_dir(const fs::path& folder) {
  return io::is_there(folder / "lock") || io::is_there(folder / "metrics.jsonl");
}

std::vector<fs::path> runs_in(const fs::path& folder) {
  std::vector<fs::path> runs;
  std::error_code error;
  if (is_run_dir(folder)) return runs;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (is_run_dir(entry->path())) runs.push_back(entry->path());
  }
  std::ranges::sort(runs);
  return runs;
}

std::vector<fs::path> runs_of(const fs::path& path) {
  std::vector<fs::path> runs = runs_in(path);
  if (runs.empty()) runs.push_back(path);
  return runs;
}

std::string status_line(const fs::path& run_dir, const RunStatus& status) {
  std::string line = fmt::format("{:<28} {:<9}", run_dir.string(), word_of(status.phase));
  if (status.step) {
    line += fmt::format(" step {}{}, loss {:.4f}", status.step->step,
                        status.steps ? fmt::format(" of {}", *status.steps) : "", status.step->loss);
  }
  if (status.seconds_left) line += fmt::format(", {} left", metrics::duration_text(*status.seconds_left));
  return printable(line) + "\n";
}

std::string status_json(const std::filesystem::path& run_dir, const RunStatus& status) {
  OrderedJson json{{"run", run_dir.string()}, {"state", word_of(status.phase)}};
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
  if (status.pace) json["pace"] = pace_json(*status.pace);
  if (status.seconds_left) json["seconds_left"] = *status.seconds_left;
  if (status.evaluation) {
    json["eval_step"] = status.evaluation->step;
    json["eval_loss"] = number(status.evaluation->loss);
  }
  if (!status.checkpoint.empty()) json["checkpoint"] = status.checkpoint;
  if (!status.best.empty()) json["best"] = status.best;
  if (status.saving) json["saving"] = *status.saving;
  if (status.fork) json["forked_from"] = {{"run", status.fork->run.string()}, {"step", status.fork->step}};
  if (status.age) json["news_age_s"] = in_seconds(*status.age);
  if (!status.message.empty()) json["message"] = status.message;
  return one_line(json) + "\n";
}

}  // namespace pptrain::app
