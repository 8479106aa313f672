#include "app/forecast/search_report.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/plan/stage_recompute.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::app {

namespace {

// As train.recompute may be given: a single word, or one for each stage.
nlohmann::ordered_json recompute_json(const std::vector<std::string>& words) {
  return words.size() == 1 ? nlohmann::ordered_json(words.front()) : nlohmann::ordered_json(words);
}

}  // namespace

std::vector<std::string> overrides(const Choice& choice, const config::JobConfig& job) {
  std::vector<std::string> keys{
      fmt::format("distributed.pp_schedule={}", choice.schedule),
      fmt::format("distributed.pp_stages_per_rank={}", choice.stages_per_rank),
      choice.layers.size() == 1
          ? "distributed.pp_split=even"
          : fmt::format("distributed.pp_split={}", fmt::join(pipeline::layers_per_stage(choice.layers), ",")),
  };
  if (choice.micro_batch_size != job.train.micro_batch_size)
    keys.push_back(fmt::format("train.micro_batch_size={}", choice.micro_batch_size));
  if (choice.grad_accum_steps != job.train.grad_accum_steps)
    keys.push_back(fmt::format("train.grad_accum_steps={}", choice.grad_accum_steps));
  if (choice.recompute != job.train.recompute)
    keys.push_back(fmt::format("train.recompute={}", fmt::join(choice.recompute, ",")));
  return keys;
}

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
    rows.push_back({fmt::to_string(i + 1), c.choice.schedule, fmt::to_string(c.choice.stages_per_rank),
                    fmt::to_string(c.choice.grad_accum_steps), fmt::to_string(c.choice.micro_batch_size),
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
    if (row > 0) out += set_line(overrides(candidates[row - 1].choice, job), 5, style.width);
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
    json["ranking"].push_back({{"pp_schedule", c.choice.schedule},
                               {"pp_stages_per_rank", c.choice.stages_per_rank},
                               {"layers_per_stage", pipeline::layers_per_stage(c.choice.layers)},
                               {"micro_batch_size", c.choice.micro_batch_size},
                               {"grad_accum_steps", c.choice.grad_accum_steps},
                               {"recompute", recompute_json(c.choice.recompute)},
                               {"step_time", c.step_time},
                               {"tokens_per_s", c.tokens_per_s},
                               {"bubble", c.bubble},
                               {"peak_bytes", c.peak_bytes},
                               {"fits", c.fits},
                               {"set", overrides(c.choice, job)}});
  }
  return json.dump(2) + '\n';
}

std::string ranking_csv(const std::vector<Candidate>& candidates, const config::JobConfig& job) {
  std::string out =
      "pp_schedule,pp_stages_per_rank,layers_per_stage,micro_batch_size,grad_accum_steps,recompute,step_time,"
      "tokens_per_s,bubble,peak_bytes,fits,set\n";
  for (const Candidate& c : candidates) {
    out +=
        fmt::format("{},{},{},{},{},{},{},{},{},{},{},\"{}\"\n", c.choice.schedule, c.choice.stages_per_rank,
                    fmt::join(pipeline::layers_per_stage(c.choice.layers), "+"), c.choice.micro_batch_size,
                    c.choice.grad_accum_steps, fmt::join(c.choice.recompute, "+"), c.step_time,
                    c.tokens_per_s, c.bubble, c.peak_bytes, c.fits, fmt::join(overrides(c.choice, job), " "));
  }
  return out;
}

}  // namespace pptrain::app
