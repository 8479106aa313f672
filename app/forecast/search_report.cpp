#include "app/forecast/search_report.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/plan/plan.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::app {

namespace {

// As train.recompute may be given: a single word, or one for each stage.
nlohmann::ordered_json recompute_json(const std::vector<std::string>& words) {
  return words.size() == 1 ? nlohmann::ordered_json(words.front()) : nlohmann::ordered_json(words);
}

}  // namespace

std::string set_line(std::span<const std::string> overrides, size_t indent, int width) {
  std::string out, line(indent, ' ');
  for (const std::string& key : overrides) {
    const std::string part = "--set " + key;
    if (line.size() > indent && line.size() + part.size() + 3 > static_cast<size_t>(width)) {
      out += line + " \\\n";
      line.assign(indent, ' ');
    }
    line += (line.size() > indent ? " " : "") + part;
  }
  return out + line + '\n';
}

std::string render_ranking(const std::vector<Candidate>& candidates, const config::JobConfig& job,
                           double budget, const RankingStyle& style) {
  std::vector<std::vector<std::string>> rows{
      {"#", "schedule", "stages", "m", "mbs", "step", "tokens/s", "bubble", "peak"}};
  const size_t shown = std::min(style.rows, candidates.size());
  for (size_t i = 0; i < shown; ++i) {
    const Candidate& c = candidates[i];
    rows.push_back({fmt::to_string(i + 1), c.layout.schedule, fmt::to_string(c.layout.stages_per_rank),
                    fmt::to_string(c.layout.grad_accum_steps), fmt::to_string(c.layout.micro_batch_size),
                    schedule::format_seconds(c.step_time), schedule::with_commas(c.tokens_per_s),
                    fmt::format("{:.1f} %", 100 * c.bubble),
                    fmt::format("{:.2f} GB", static_cast<double>(c.peak_bytes) / 1e9)});
    if (!c.fits) rows.back().emplace_back("too large");
  }
  if (std::ranges::any_of(rows, [&](const auto& row) { return row.size() > rows[0].size(); }))
    rows[0].emplace_back("");
  const std::string lines = schedule::table(rows, 2);
  std::string out;
  size_t begin = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    const size_t end = lines.find('\n', begin) + 1;
    out += lines.substr(begin, end - begin);
    begin = end;
    if (row > 0) out += set_line(candidates[row - 1].layout.overrides(&job), 5, style.width);
  }
  out += schedule::wrapped(
      "stages: of a rank; m: microbatches of a step (grad_accum_steps), each of mbs samples "
      "(micro_batch_size); peak: of the fullest rank\n",
      static_cast<size_t>(style.width));
  if (candidates.size() > shown) out += fmt::format("{} more: --all\n", candidates.size() - shown);
  if (budget > 0) out += fmt::format("budget {:.2f} GB a rank\n", budget / 1e9);
  return out;
}

std::string ranking_json(const std::vector<Candidate>& candidates, const config::JobConfig& job,
                         double budget) {
  nlohmann::ordered_json json{{"budget", budget}, {"ranking", nlohmann::ordered_json::array()}};
  for (const Candidate& c : candidates) {
    json["ranking"].push_back({{"pp_schedule", c.layout.schedule},
                               {"pp_stages_per_rank", c.layout.stages_per_rank},
                               {"layers_per_stage", pipeline::layers_per_stage(c.layout.layers)},
                               {"micro_batch_size", c.layout.micro_batch_size},
                               {"grad_accum_steps", c.layout.grad_accum_steps},
                               {"recompute", recompute_json(c.layout.recompute)},
                               {"step_time", c.step_time},
                               {"tokens_per_s", c.tokens_per_s},
                               {"bubble", c.bubble},
                               {"peak_bytes", c.peak_bytes},
                               {"fits", c.fits},
                               {"set", c.layout.overrides(&job)}});
  }
  return json.dump(2) + '\n';
}

std::string ranking_csv(const std::vector<Candidate>& candidates, const config::JobConfig& job) {
  std::string out =
      "pp_schedule,pp_stages_per_rank,layers_per_stage,micro_batch_size,grad_accum_steps,recompute,step_time,"
      "tokens_per_s,bubble,peak_bytes,fits,set\n";
  for (const Candidate& c : candidates) {
    out +=
        fmt::format("{},{},{},{},{},{},{},{},{},{},{},\"{}\"\n", c.layout.schedule, c.layout.stages_per_rank,
                    fmt::join(pipeline::layers_per_stage(c.layout.layers), "+"), c.layout.micro_batch_size,
                    c.layout.grad_accum_steps, fmt::join(c.layout.recompute, "+"), c.step_time,
                    c.tokens_per_s, c.bubble, c.peak_bytes, c.fits, fmt::join(c.layout.overrides(&job), " "));
  }
  return out;
}

}  // namespace pptrain::app
