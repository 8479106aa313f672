#include "app/report/run_data.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <system_error>

#include "app/plan/run_files.h"
#include "core/base/error.h"
#include "core/base/special_file.h"
#include "core/io/paths.h"
#include "core/metrics/step_record.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

double number(const nlohmann::json& record, const std::string& key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<double>() : unknown;
}

// Seconds since 1970; NaN if the record has no time.
double time_of(const nlohmann::json& record) {
  const auto found = record.find("time");
  if (found == record.end() || !found->is_string()) return unknown;
  const auto time = metrics::parse_utc(found->get<std::string>());
  if (!time) return unknown;
  const auto exact = std::chrono::floor<std::chrono::milliseconds>(*time);
  return std::chrono::duration<double>(exact.time_since_epoch()).count();
}

// Takes the lines one by one.
class RunReader {
 public:
  explicit RunReader(RunData& run) : run_(run) {
    for (const std::string& key : series_keys()) columns_.push_back(&run.steps.series[key]);
  }

  // False if the line is no record.
  bool take(const std::string& text) {
    const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return false;
    const auto step = json.find("step");
    // A record without a valid number of a step or of tokens is not one of ours.
    if (step == json.end() || !step->is_number_unsigned() || step->get<uint64_t>() >= INT64_MAX) return false;
    for (const char* key : {"total_tokens", "saved_step"})
      if (const double count = number(json, key); std::isfinite(count) && (count < 0 || count > 1e18))
        return false;
    if (json.contains("start")) return take_start(json);
    if (json.contains("note")) return true;  // for people: why lines are missing
    if (json.contains("eval_loss")) return take_eval(json, step->get<int64_t>());
    return json.contains("loss") && take_step(json, step->get<int64_t>());
  }

  void finish() { run_.checkpoints.assign(saved_.begin(), saved_.end()); }

 private:
  bool take_start(const nlohmann::json& json) {
    forget_after(json.at("step").get<int64_t>());
    run_.starts.push_back(json);
    if (const double time = time_of(json); std::isfinite(time)) clock_ = std::max(clock_, time);
    return true;
  }

  bool take_eval(const nlohmann::json& json, int64_t step) {
    std::erase_if(run_.evaluations, [&](const EvaluationPoint& e) { return e.step >= step; });
    run_.evaluations.push_back(
        {step, advance(time_of(json), 0), number(json, "eval_loss"), number(json, "eval_bits_per_byte")});
    return true;
  }

  bool take_step(const nlohmann::json& json, int64_t step) {
    StepColumns& steps = run_.steps;
    if (!steps.step.empty() && steps.step.back() >= step) forget_after(step - 1);
    const double tokens = number(json, "total_tokens"), seconds = number(json, "step_time_s");
    steps.step.push_back(step);
    steps.time.push_back(advance(time_of(json), std::isfinite(seconds) ? seconds : 0));
    const double before = steps.tokens.empty() ? 0 : steps.tokens.back();
    steps.tokens.push_back(std::isfinite(tokens) ? tokens : before);
    for (size_t i = 0; i < columns_.size(); ++i) columns_[i]->push_back(number(json, series_keys()[i]));
    if (const auto skipped = json.find("skipped"); skipped != json.end() && *skipped == true)
      run_.skipped.push_back(step);
    if (const double saved = number(json, "saved_step"); std::isfinite(saved))
      saved_.insert(static_cast<int64_t>(saved));
    run_.last = json;
    return true;
  }

  // The following lines replace the records of later steps.
  void forget_after(int64_t step) {
    StepColumns& steps = run_.steps;
    const auto kept = static_cast<size_t>(std::ranges::upper_bound(steps.step, step) - steps.step.begin());
    steps.step.resize(kept);
    steps.time.resize(kept);
    steps.tokens.resize(kept);
    for (std::vector<double>* column : columns_) column->resize(kept);
    std::erase_if(run_.evaluations, [&](const EvaluationPoint& e) { return e.step > step; });
    std::erase_if(run_.skipped, [&](int64_t skipped) { return skipped > step; });
  }

  // If a clock was set back, the time stands still.
  double advance(double time, double seconds) {
    clock_ = std::isfinite(time) ? std::max(clock_, time) : clock_ + seconds;
    return clock_;
  }

  RunData& run_;
  std::vector<std::vector<double>*> columns_;
  std::set<int64_t> saved_;
  double clock_ = 0;
};

void read_metrics(const fs::path& file, RunData& run) {
  const std::string kind = special_file(file);
  std::ifstream in;
  if (kind.empty()) in.open(file, std::ios::binary);
  if (!in.is_open()) {
    throw UsageError(fmt::format("{} {}; expected a run's folder, or a file like its metrics.jsonl",
                                 file.string(), kind.empty() ? "cannot be read" : "is " + kind));
  }
  RunReader reader(run);
  int64_t number = 0;
  for (std::string text; std::getline(in, text);) {
    ++number;
    if (reader.take(text) || in.eof()) continue;
    if (run.damaged++ == 0) run.first_damaged = number;
  }
  if (in.bad()) throw Error(fmt::format("{} cannot be read to its end", file.string()));
  reader.finish();
}

void read_jobs(RunData& run) {
  try {
    run.job = read_resolved_job(run.folder);
    if (!run.job) run.job_problem = "there is no job.toml beside its metrics";
  } catch (const Error& error) {
    run.job_problem = error.what();
  }
  // Runs that began before resolved.toml existed kept only job.toml.
  const char* const kind = io::is_there(run.folder / "resolved.1.toml") ? "resolved" : "job";
  for (int i = 1;; ++i) {
    const fs::path file = run.folder / fmt::format("{}.{}.toml", kind, i);
    if (!io::is_there(file)) return;
    try {
      run.earlier.push_back({.file = file.filename().string(), .job = read_job_file_of_run(file)});
    } catch (const Error&) {  // of another version
    }
  }
}

void read_checkpoints(RunData& run) {
  std::set<int64_t> all(run.checkpoints.begin(), run.checkpoints.end());
  std::set<int64_t> there;
  try {
    for (const auto& [step, folder] : checkpoint::list_step_folders(run.folder / "checkpoints"))
      there.insert(step);
  } catch (const Error&) {
    return;  // a folder that cannot be read: the marks from metrics.jsonl remain
  }
  all.insert(there.begin(), there.end());
  run.checkpoints.assign(all.begin(), all.end());
  run.kept.assign(there.begin(), there.end());
}

}  // namespace

const std::vector<std::string>& series_keys() {
  static const std::vector<std::string> keys = {
      "loss",           "grad_norm",   "lr",          "tokens_per_s",    "mfu",          "step_time_s",
      "memory_gb",      "bubble",      "bubble_fill", "bubble_steady",   "bubble_drain", "bubble_wait",
      "bubble_barrier", "data_wait_s", "save_time_s", "expert_imbalance"};
  return keys;
}

RunData read_run(const std::string& run) {
  RunData result;
  result.name = run;
  std::error_code error;
  const bool is_folder = fs::is_directory(run, error);
  const fs::path file = is_folder ? fs::path(run) / "metrics.jsonl" : fs::path(run);
  result.folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  read_metrics(file, result);
  read_jobs(result);
  result.pace = read_pace(result.folder);
  read_checkpoints(result);
  return result;
}

}  // namespace pptrain::app
