// The data of a report's page, as one JSON object.

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "app/report/page.h"
#include "app/run/fork.h"
#include "core/base/timing.h"
#include "core/config/differences.h"

namespace pptrain::app {

namespace {

using Json = nlohmann::ordered_json;

// Most points of one curve.
constexpr size_t most_points = 1500;

// Points of a long curve to draw, so that its spikes stay: indices into `values`, ascending. Returns all
// finite ones, if they are at most `most` (at least 4). Else divides them into groups of consecutive ones,
// and keeps the smallest and the largest of each, and the first and the last of all.
std::vector<size_t> thinned(std::span<const double> values, size_t most) {
  std::vector<size_t> finite;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) finite.push_back(i);
  }
  if (finite.size() <= most) return finite;
  const size_t groups = (most - 2) / 2;
  std::vector<size_t> kept = {finite.front(), finite.back()};
  for (size_t group = 0; group < groups; ++group) {
    const auto begin = finite.begin() + static_cast<std::ptrdiff_t>(group * finite.size() / groups);
    const auto end = finite.begin() + static_cast<std::ptrdiff_t>((group + 1) * finite.size() / groups);
    const auto [low, high] =
        std::minmax_element(begin, end, [&](size_t a, size_t b) { return values[a] < values[b]; });
    kept.push_back(*low);
    kept.push_back(*high);
  }
  std::ranges::sort(kept);
  kept.erase(std::ranges::unique(kept).begin(), kept.end());
  return kept;
}

// A picture shows no more significant digits; JSON has the shortest text that reads back.
double shortened(double value) {
  return std::strtod(fmt::format("{:.7g}", value).c_str(), nullptr);
}

double milliseconds(double seconds) {
  return std::round(seconds * 1e3) / 1e3;
}

// The begin of the run's time: of its first recorded step, or its end if step_time_s is missing.
double origin_of(const RunData& run) {
  if (run.steps.size() == 0) return 0;
  const double step_time = run.steps.series.at("step_time_s").front();
  return run.steps.time.front() - (std::isfinite(step_time) ? step_time : 0);
}

// Curves, each with its rows: places in the table of rows, which all curves share.
Json curves(const RunData& run) {
  const StepColumns& steps = run.steps;
  std::map<std::string, std::vector<size_t>> kept;
  std::set<size_t> rows;
  for (const auto& [key, values] : steps.series) {
    const std::vector<size_t> points = thinned(values, most_points);
    if (points.empty()) continue;
    rows.insert(points.begin(), points.end());
    kept[key] = points;
  }
  Json step = Json::array(), time = Json::array(), tokens = Json::array();
  std::map<size_t, size_t> place;
  for (const size_t row : rows) {
    place[row] = place.size();
    step.push_back(steps.step[row]);
    time.push_back(milliseconds(steps.time[row] - origin_of(run)));
    tokens.push_back(static_cast<int64_t>(steps.tokens[row]));
  }
  Json series = Json::object();
  for (const std::string& key : series_keys()) {
    if (!kept.contains(key)) continue;
    Json at = Json::array(), value = Json::array();
    for (const size_t row : kept[key]) {
      at.push_back(place[row]);
      value.push_back(shortened(steps.series.at(key)[row]));
    }
    series[key] = {{"value", std::move(value)}};
    if (kept[key].size() != rows.size()) series[key]["at"] = std::move(at);
  }
  return {{"step", std::move(step)},
          {"time", std::move(time)},
          {"tokens", std::move(tokens)},
          {"series", std::move(series)}};
}

// Tokens of the run after so many steps.
double tokens_at(const StepColumns& steps, int64_t step) {
  const auto behind = std::ranges::upper_bound(steps.step, step);
  return behind == steps.step.begin() ? 0
                                      : steps.tokens[static_cast<size_t>(behind - steps.step.begin()) - 1];
}

Json evaluations(const RunData& run) {
  Json step = Json::array(), time = Json::array(), tokens = Json::array(), value = Json::array();
  Json bits = Json::array();
  for (const EvaluationPoint& e : run.evaluations) {
    if (!std::isfinite(e.loss)) continue;
    step.push_back(e.step);
    time.push_back(milliseconds(e.time - origin_of(run)));
    tokens.push_back(static_cast<int64_t>(tokens_at(run.steps, e.step)));
    value.push_back(shortened(e.loss));
    bits.push_back(std::isfinite(e.bits_per_byte) ? Json(shortened(e.bits_per_byte)) : Json());
  }
  return {{"step", step}, {"time", time}, {"tokens", tokens}, {"value", value}, {"bits_per_byte", bits}};
}

// The part of the headers that a page shows; the rest may be of any size.
Json starts(const RunData& run) {
  Json result = Json::array();
  for (const nlohmann::json& header : run.starts) {
    Json start = Json::object();
    for (const char* key : {"start", "step", "time", "host", "device", "world_size", "version", "checkpoint",
                            "layout", "command"}) {
      if (header.contains(key)) start[key] = header.at(key);
    }
    result.push_back(std::move(start));
  }
  return result;
}

// Lines for people: how the run goes now, and when it was slow before.
Json pace(const RunData& run) {
  Json lines = Json::array();
  if (!run.pace) return lines;
  lines.push_back(describe_pace(*run.pace));
  for (const Slowness& slow : run.pace->slow)
    if (slow.last) lines.push_back(describe(slow, *run.pace));
  return lines;
}

// Medians of figures that vary from step to step by chance: null if no step has the figure.
Json medians(const RunData& run) {
  Json result = Json::object();
  for (const char* key : {"tokens_per_s", "mfu", "bubble"}) {
    std::vector<double> values = run.steps.series.at(key);
    std::erase_if(values, [](double value) { return !std::isfinite(value); });
    result[key] = values.empty() ? Json() : Json(shortened(median(std::move(values))));
  }
  return result;
}

Json describe(const RunData& run) {
  Json last = Json::object();
  if (run.last.is_object()) {
    for (const auto& [key, value] : run.last.items()) {
      if (!value.is_structured()) last[key] = value;
    }
  }
  static constexpr size_t most_marks = 2000;
  const auto newest = [](const std::vector<int64_t>& all) {
    return std::vector<int64_t>(all.end() - static_cast<std::ptrdiff_t>(std::min(all.size(), most_marks)),
                                all.end());
  };
  return {{"name", run.name},
          {"steps", run.steps.size()},
          {"damaged", run.damaged},
          {"first_damaged", run.first_damaged},
          {"starts", starts(run)},
          {"last", std::move(last)},
          {"medians", medians(run)},
          {"skipped", newest(run.skipped)},
          {"skipped_count", run.skipped.size()},
          {"checkpoints", newest(run.checkpoints)},
          {"kept_checkpoints", newest(run.kept)},
          {"pace", pace(run)},
          {"curves", curves(run)},
          {"evaluations", evaluations(run)}};
}

// The runs, by their places, then the runs that they come from, as far back as their folders tell. Empty if
// no run is a fork.
Json descent(std::span<const RunData> runs) {
  Json nodes = Json::array();
  std::vector<std::filesystem::path> folders;
  std::map<std::filesystem::path, size_t> places;
  const auto add = [&](const std::filesystem::path& folder, const std::string& name) {
    std::error_code error;
    const size_t place =
        places.emplace(std::filesystem::weakly_canonical(folder, error), nodes.size()).first->second;
    nodes.push_back({{"name", name}});
    folders.push_back(folder);
    return place;
  };
  for (const RunData& run : runs) add(run.folder, run.name);
  for (size_t i = 0; i < folders.size(); ++i) {
    const std::optional<Fork> fork = read_fork(folders[i]);
    if (!fork) continue;
    const auto known = places.find(fork->run);
    nodes[i]["parent"] = known != places.end() ? known->second : add(fork->run, fork->run.string());
    nodes[i]["step"] = fork->step;
  }
  const bool any = std::ranges::any_of(nodes, [](const Json& node) { return node.contains("parent"); });
  return any ? nodes : Json::array();
}

// A column of the table of differences.
struct JobColumn {
  std::string name;
  const config::JobConfig* job = nullptr;  // null: there is none
};

// Each run's jobs, those of earlier starts first.
std::vector<JobColumn> job_columns(std::span<const RunData> runs) {
  std::vector<JobColumn> columns;
  for (const RunData& run : runs) {
    for (const EarlierJob& earlier : run.earlier)
      columns.push_back({fmt::format("{}, {}", run.name, earlier.file), &earlier.job});
    columns.push_back({run.name, run.job ? &*run.job : nullptr});
  }
  return columns;
}

// The keys that differ between jobs, each with its value in every column ("" if there is no job): the first
// item of a row is the key.
std::vector<std::vector<std::string>> job_differences(std::span<const JobColumn> columns) {
  const auto first =
      std::ranges::find_if(columns, [](const JobColumn& column) { return column.job != nullptr; });
  if (first == columns.end()) return {};
  std::vector<std::string> order;  // of the keys
  std::map<std::string, std::map<size_t, std::string>> others;
  std::map<std::string, std::string> of_first;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].job == nullptr) continue;
    for (const config::Difference& d : config::differences(*first->job, *columns[i].job)) {
      if (!of_first.contains(d.option)) order.push_back(d.option);
      of_first[d.option] = d.saved;
      others[d.option][i] = d.now;
    }
  }
  std::ranges::sort(order);
  std::vector<std::vector<std::string>> rows;
  for (const std::string& key : order) {
    std::vector<std::string> row = {key};
    for (size_t i = 0; i < columns.size(); ++i) {
      const bool same = !others[key].contains(i);
      row.push_back(columns[i].job == nullptr ? "" : same ? of_first[key] : others[key][i]);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

nlohmann::ordered_json report_data(std::span<const RunData> runs) {
  Json all = Json::array();
  for (const RunData& run : runs) all.push_back(describe(run));
  Json problems = Json::array();
  for (const RunData& run : runs) problems.push_back(run.job_problem);
  const std::vector<JobColumn> columns = job_columns(runs);
  Json names = Json::array();
  for (const JobColumn& column : columns) names.push_back(column.name);
  const auto differences = job_differences(columns);
  const bool other_tokens = std::ranges::any_of(differences, [](const std::vector<std::string>& row) {
    return row.front() == "model.vocab_size" || row.front() == "data.tokenizer";
  });
  return {{"format", "pptrain report 1"}, {"most_points", most_points},         {"runs", std::move(all)},
          {"descent", descent(runs)},     {"jobs", std::move(names)},           {"differences", differences},
          {"other_tokens", other_tokens}, {"job_problems", std::move(problems)}};
}

}  // namespace pptrain::app
