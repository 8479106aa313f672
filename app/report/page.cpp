#include "app/report/page.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <map>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "app/forecast/prediction.h"
#include "app/plan/plan.h"
#include "app/report/page_files.h"
#include "app/trace/trace_file.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/config/differences.h"
#include "parallel/schedule/render/render.h"

namespace pptrain::app {
namespace {

// `text` with these characters replaced by other texts.
std::string replaced(std::string_view text, const std::map<char, std::string_view>& others) {
  std::string result;
  result.reserve(text.size());
  for (const char& c : text) {
    const auto other = others.find(c);
    result += other == others.end() ? std::string_view(&c, 1) : other->second;
  }
  return result;
}

// Escaped for text between tags and in quoted attributes.
std::string html_escaped(std::string_view text) {
  return replaced(text, {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}});
}

// For the content of <script type="application/json">, which no text can end: there "<" occurs only in
// strings. Bytes that are not UTF-8 become U+FFFD.
std::string script_json(const nlohmann::ordered_json& json) {
  return replaced(one_line(json), {{'<', "\\u003c"}});
}

namespace fs = std::filesystem;

struct SchedulePicture {
  std::string svg;      // empty: there is none
  std::string caption;  // what it shows, or why there is none
};

constexpr size_t most_actions = 4000;  // about a megabyte of picture

// `file`: the source of the job.
SchedulePicture draw_plan(const config::JobConfig& job, const std::string& file) {
  const Plan plan = make_plan(job);
  size_t actions = 0;
  for (const auto& list : plan.compute.actions) actions += list.size();
  if (actions > most_actions)
    throw UsageError(
        fmt::format("a step has more than {} passes; see pptrain plan --format svg", most_actions));
  const CostSource costs = make_cost_source(plan, "");
  const Prediction prediction = predict(plan, costs);
  return {schedule::render_svg(plan.schedule, prediction.pipeline, /*seconds=*/true),
          fmt::format("A step as planned from {}, with costs {}. With profile.trace = true a run leaves the "
                      "trace of steps as they ran.",
                      file, costs.description)};
}

// The start that made a step, counted from 1: the last that began before it. 0 if none is known.
size_t start_of(const RunData& run, int64_t step) {
  for (size_t i = run.starts.size(); i > 0; --i) {
    const nlohmann::json& start = run.starts[i - 1];
    if (start.contains("step") && start["step"].is_number_integer() && start["step"].get<int64_t>() < step)
      return i;
  }
  return 0;
}

// A step as it ran, from trace.json (profile.trace) in the run's folder. Without one, a step as planned from
// the run's job, with modelled costs of its device.
SchedulePicture draw_schedule(const RunData& run) {
  std::string problem;
  std::error_code error;
  if (const fs::path trace = run.folder / "trace.json"; fs::exists(trace, error)) {
    try {
      const TracedStep step = read_traced_step(trace, most_actions);
      return {schedule::render_svg(step.schedule, step.times, /*seconds=*/true),
              fmt::format("Step {} as it ran in start {} ({}), of trace.json: the passes, on rank 0's clock.",
                          step.step, start_of(run, step.step), step.mesh.describe())};
    } catch (const std::exception& fault) {
      problem = fmt::format("No picture of trace.json: {}. ", fault.what());
    }
  }
  if (!run.job) return {"", fmt::format("{}No picture of the schedule: {}.", problem, run.job_problem)};
  try {
    SchedulePicture picture = draw_plan(*run.job, "job.toml");
    picture.caption = problem + picture.caption;
    return picture;
  } catch (const std::exception& fault) {
    return {"", fmt::format("{}No picture of the plan: {}.", problem, fault.what())};
  }
}

// The schedules, as planned, that a run had before a start changed its layout: the oldest first.
std::vector<SchedulePicture> draw_earlier_schedules(const RunData& run) {
  std::vector<SchedulePicture> pictures;
  for (size_t i = 0; i < run.earlier.size(); ++i) {
    const auto& [file, job] = run.earlier[i];
    const config::JobConfig* const next = i + 1 < run.earlier.size() ? &run.earlier[i + 1].job
                                          : run.job                  ? &*run.job
                                                                     : nullptr;
    const bool changed =
        next == nullptr || std::ranges::any_of(config::differences(job, *next), [](const auto& difference) {
          return difference.effect == config::Effect::layout;
        });
    if (!changed) continue;
    try {
      pictures.push_back(draw_plan(job, fmt::format("{}, the job of an earlier start", file)));
    } catch (const std::exception& fault) {
      pictures.push_back({"", fmt::format("No picture of the plan of {}: {}.", file, fault.what())});
    }
  }
  return pictures;
}

// Fresh for each page, so that no text in a file can have guessed it.
std::string new_nonce() {
  std::random_device random;
  std::string nonce;
  for (int i = 0; i < 4; ++i) nonce += fmt::format("{:08x}", random());
  return nonce;
}

std::string title_of(std::span<const RunData> runs) {
  return runs.size() == 1 ? runs.front().name + " - pptrain" : fmt::format("{} runs - pptrain", runs.size());
}

// The schedules, each once: runs with the same one are named together.
std::string schedule_figures(std::span<const RunData> runs) {
  std::vector<std::pair<SchedulePicture, std::string>> pictures;
  const auto add = [&](const RunData& run, SchedulePicture picture) {
    const auto same = std::ranges::find_if(pictures, [&](const auto& other) {
      return other.first.svg == picture.svg && other.first.caption == picture.caption;
    });
    if (same != pictures.end()) {
      same->second += ", " + run.name;
    } else {
      pictures.emplace_back(std::move(picture), run.name);
    }
  };
  for (const RunData& run : runs) {
    for (SchedulePicture& picture : draw_earlier_schedules(run)) add(run, std::move(picture));
    add(run, draw_schedule(run));
  }
  std::string html;
  for (const auto& [picture, names] : pictures) {
    html += fmt::format("<figure class=\"schedule\"><figcaption><b>{}</b> {}</figcaption>",
                        html_escaped(names), html_escaped(picture.caption));
    if (!picture.svg.empty())
      html += fmt::format(
          "<div class=\"scroll\" tabindex=\"0\" role=\"img\" aria-label=\"Timeline of the passes of each "
          "rank\">{}</div>",
          picture.svg);
    html += "</figure>\n";
  }
  return html;
}

// Replaces each {{NAME}} of the template, once from left to right: inserted text is not searched again.
std::string fill(std::string_view page, std::span<const std::pair<std::string_view, std::string>> values) {
  std::string result;
  while (true) {
    const size_t begin = page.find("{{");
    const size_t end = begin == std::string_view::npos ? begin : page.find("}}", begin);
    result += page.substr(0, begin);
    if (end == std::string_view::npos) return result;
    const std::string_view name = page.substr(begin + 2, end - begin - 2);
    for (const auto& [key, value] : values) {
      if (key == name) result += value;
    }
    page.remove_prefix(end + 2);
  }
}

}  // namespace

std::string render_report(std::span<const RunData> runs) {
  const std::array<std::pair<std::string_view, std::string>, 9> values = {{
      {"nonce", new_nonce()},
      {"title", html_escaped(title_of(runs))},
      {"style", std::string(page_style)},
      {"made", fmt::format("pptrain {}, {}", PPTRAIN_VERSION, now_utc())},
      {"schedules", schedule_figures(runs)},
      {"data", script_json(report_data(runs))},
      {"scales_script", std::string(page_scales_script)},
      {"chart_script", std::string(page_chart_script)},
      {"script", std::string(page_script)},
  }};
  return fill(page_template, values);
}

}  // namespace pptrain::app
