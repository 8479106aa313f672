#include "app/forecast/search_report.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "app/forecast/sureness.h"
#include "app/plan/plan.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::app {

namespace {

using Json = nlohmann::ordered_json;

double in_gb(double bytes) {
  return bytes / 1e9;
}

std::string peak(const Candidate& c) {
  return fmt::format("{:.2f} GB", in_gb(static_cast<double>(c.bytes.total())));
}

// "--set KEY=VALUE ..." behind `indent` spaces: one command line, which goes on after a \ where it is longer
// than `width`.
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

// The rows as a table, whose first row is the header; each other row is followed by the --set line that makes
// the job so, with all keys if `whole`.
std::string numbered(std::vector<std::vector<std::string>> rows, std::span<const Candidate> candidates,
                     const config::JobConfig& job, bool whole, int width) {
  rows.front().insert(rows.front().begin(), "#");
  for (size_t row = 1; row < rows.size(); ++row) rows[row].insert(rows[row].begin(), fmt::to_string(row));
  const std::string lines = schedule::table(rows, 2);
  std::string out;
  size_t begin = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    const size_t end = lines.find('\n', begin) + 1;
    out += lines.substr(begin, end - begin);
    begin = end;
    if (row > 0) out += set_line(candidates[row - 1].layout.overrides(job, whole), 5, width);
  }
  return out;
}

// The facts that rankings of schedules and of meshes show.
using Columns = bool (*)(const LayoutFact&);
constexpr Columns of_schedules = [](const LayoutFact& fact) { return !fact.of_mesh_rankings(); };
constexpr Columns of_meshes = [](const LayoutFact&) { return true; };

Json layout_json(const Layout& layout, Columns columns) {
  Json json;
  for (const LayoutFact& fact : layout_facts()) {
    if (columns(fact))
      json[std::string(fact.column)] = Json::parse(fact.toml(layout));  // TOML values are JSON too
  }
  return json;
}

// text(fact) of each of them, with commas between.
template <typename Text>
std::string csv_cells(Columns columns, const Text& text) {
  std::string cells;
  for (const LayoutFact& fact : layout_facts()) {
    if (columns(fact)) cells += fmt::format("{}{}", cells.empty() ? "" : ",", text(fact));
  }
  return cells;
}

std::string layout_columns(Columns columns) {
  return csv_cells(columns, [](const LayoutFact& fact) { return fact.column; });
}

std::string layout_csv(const Layout& layout, Columns columns) {
  return csv_cells(columns, [&](const LayoutFact& fact) { return fact.text(layout, "+"); });
}

// What the searched order of the ranking gains.
std::string order_gain(std::span<const Candidate> candidates) {
  const auto order = std::ranges::find_if(candidates, &Candidate::is_order);
  if (order == candidates.end()) return "";
  const auto named = std::ranges::find_if_not(candidates, &Candidate::is_order);
  if (named == candidates.end() || !named->fits)
    return "search: an order that fits where no named schedule does\n";
  return fmt::format("search: an order found for these costs, {:.1f} % faster than {}\n",
                     100 * (1 - order->step_time / named->step_time), named->layout.schedule);
}

}  // namespace

std::string render_ranking(const std::vector<Candidate>& candidates, const config::JobConfig& job,
                           double budget, int width, size_t most_rows) {
  std::vector<std::vector<std::string>> rows{
      {"schedule", "stages", "m", "mbs", "step", "tokens/s", "bubble", "peak"}};
  const size_t shown = std::min(most_rows, candidates.size());
  for (const Candidate& c : std::span(candidates).first(shown)) {
    rows.push_back({c.layout.schedule_text(), fmt::to_string(c.layout.stages_per_rank),
                    fmt::to_string(c.layout.grad_accum_steps), fmt::to_string(c.layout.micro_batch_size),
                    schedule::format_seconds(c.step_time), schedule::with_commas(c.tokens_per_s),
                    fmt::format("{:.1f} %", 100 * c.bubble), peak(c)});
    if (!c.fits) rows.back().emplace_back("too large");
  }
  if (std::ranges::any_of(rows, [&](const auto& row) { return row.size() > rows[0].size(); }))
    rows[0].emplace_back("");
  std::string out = numbered(std::move(rows), candidates, job, false, width);
  out += schedule::wrapped(
      "stages: of a rank; m: microbatches of a step (grad_accum_steps), each of mbs samples "
      "(micro_batch_size); peak: of the fullest rank\n",
      static_cast<size_t>(width));
  out += order_gain(candidates);
  if (candidates.size() > shown) out += fmt::format("{} more: --all\n", candidates.size() - shown);
  if (budget > 0) out += fmt::format("budget {:.2f} GB a rank\n", budget / 1e9);
  return out;
}

std::string ranking_json(const std::vector<Candidate>& candidates, const config::JobConfig& job,
                         double budget) {
  Json json{{"budget", budget}, {"ranking", Json::array()}};
  for (const Candidate& c : candidates) {
    Json one = layout_json(c.layout, of_schedules);
    one.update({{"step_time", c.step_time},
                {"tokens_per_s", c.tokens_per_s},
                {"bubble", std::max(0.0, c.bubble)},
                {"peak_bytes", c.bytes.total()},
                {"fits", c.fits},
                {"set", c.layout.overrides(job)}});
    json["ranking"].push_back(std::move(one));
  }
  return json.dump(2) + '\n';
}

std::string ranking_csv(const std::vector<Candidate>& candidates, const config::JobConfig& job) {
  std::string out = layout_columns(of_schedules) + ",step_time,tokens_per_s,bubble,peak_bytes,fits,set\n";
  for (const Candidate& c : candidates)
    out += fmt::format("{},{},{},{},{},{},\"{}\"\n", layout_csv(c.layout, of_schedules), c.step_time,
                       c.tokens_per_s, c.bubble, c.bytes.total(), c.fits,
                       fmt::join(c.layout.overrides(job), " "));
  return out;
}

namespace {

std::string header(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                   const SearchOptions& options) {
  const DeviceModel& device = source.device;
  std::string text = fmt::format("{} ranks; costs {}", options.world, source.description);
  if (device.ranks_per_host > 0) {
    text += fmt::format("; hosts of {} ranks, {:.3g} GB/s a rank within a host, {:.3g} between hosts",
                        device.ranks_per_host, device.within_host.bandwidth / 1e9,
                        device.between_hosts.bandwidth / 1e9);
  }
  text +=
      options.budget > 0 ? fmt::format("; {:.2f} GB a rank", in_gb(options.budget)) : "; no bound on memory";
  text += fmt::format("\nkept: {} samples of {} tokens a step\n", result.samples, base.job.train.seq_len);
  return text + fmt::format(
                    "{} meshes, {} layouts; {} simulated with every schedule, the others take longer or more "
                    "memory by what they hold and compute at least\n\n",
                    result.meshes, result.layouts, result.simulated);
}

// Without a pipeline all schedules are one.
std::string schedule_of(const Layout& layout) {
  return layout.mesh.pp == 1 ? "-" : layout.schedule;
}

std::string percent(double fraction) {
  return fmt::format("{:.1f} %", 100 * std::max(0.0, fraction));  // rounding leaves -0.0
}

std::string mfu_of(const Candidate& c, const PlanBase& base, const CostSource& source) {
  const double mfu = predicted_mfu(base, source, c.layout.mesh.world_size(), c.tokens_per_s);
  return mfu > 0 ? fmt::format("{:.0f} %", 100 * mfu) : "?";
}

std::vector<std::vector<std::string>> rows_of(std::span<const Candidate> candidates, const PlanBase& base,
                                              const CostSource& source) {
  std::vector<std::vector<std::string>> rows{{"schedule"}};
  for (const auto& [axis, size] : mesh::MeshShape().sizes())
    rows[0].push_back(axis == "dp_replicate" ? "rep" : axis == "dp_shard" ? "shard" : axis);
  rows[0].insert(rows[0].end(), {"step", "tokens/s", "MFU", "bubble", "GB"});
  for (const Candidate& c : candidates) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(schedule_of(c.layout));
    for (const auto& [axis, size] : c.layout.mesh.sizes()) row.push_back(fmt::to_string(size));
    row.push_back(schedule::format_seconds(c.step_time));
    row.push_back(schedule::with_commas(c.tokens_per_s));
    row.push_back(mfu_of(c, base, source));
    row.push_back(percent(c.bubble));
    row.push_back(fmt::format("{:.2f}", in_gb(static_cast<double>(c.bytes.total()))));
  }
  return rows;
}

// Of the numbers of pipeline ranks that are not among the rows above.
std::string best_of_pp(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                       int width) {
  if (result.best_of_pp.empty()) return "";
  return "\nthe best of each other pp\n" +
         numbered(rows_of(result.best_of_pp, base, source), result.best_of_pp, base.job, true, width);
}

// How many of the first rows may be the fastest, as far as forecasts are sure.
std::string ties(std::span<const Candidate> ranking, const Sureness& sure) {
  std::string text = "how sure: " + sure.text;
  if (!sure.has_range()) return text + '\n';
  text += "; " + sure.describe_range(ranking.front().step_time);
  const auto near = std::ranges::count_if(ranking, [&](const Candidate& c) {
    return c.fits && c.step_time < sure.tie() * ranking.front().step_time;
  });
  if (near > 1)
    text += fmt::format(
        ". The steps of {} rows differ by less than forecasts are sure of ({:.0f} %): measure them", near,
        100 * (sure.tie() - 1));
  return text + '\n';
}

Json mesh_json(const Candidate& c, const config::JobConfig& job) {
  Json json, bytes;
  for (const auto& [axis, size] : c.layout.mesh.sizes()) json[axis] = size;
  for (const auto& [kind, count] : c.bytes.kinds()) bytes[kind] = count;
  bytes["total"] = c.bytes.total();
  json.update(layout_json(c.layout, of_meshes));
  json.update({{"step_time", c.step_time},
               {"tokens_per_s", c.tokens_per_s},
               {"bubble", std::max(0.0, c.bubble)},
               {"bytes", bytes},
               {"fits", c.fits},
               {"set", c.layout.overrides(job, true)}});
  return json;
}

std::string refinement(const MeshSearchResult& result, const config::JobConfig& job, size_t width) {
  if (!result.refined) return "";
  const Candidate& refined = *result.refined;
  const double gain = 1 - refined.step_time / result.ranking.front().step_time;
  const std::string text = fmt::format("refined: {} on {}: {}, {:.1f} % {} than the first one; peak {}\n",
                                       refined.layout.schedule_text(), refined.layout.mesh.describe(),
                                       schedule::format_seconds(refined.step_time), 100 * std::abs(gain),
                                       gain >= 0 ? "faster" : "slower", peak(refined));
  return schedule::wrapped(text, width, 4) +
         set_line(refined.layout.overrides(job, true), 5, static_cast<int>(width));
}

}  // namespace

std::string render_meshes(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                          const SearchOptions& options, int width) {
  const auto columns = static_cast<size_t>(width);
  std::string out = schedule::wrapped(header(result, base, source, options), columns, 4);
  if (result.ranking.empty()) {
    out += "nothing fits: use more ranks, or more memory\n";
  } else {
    out += numbered(rows_of(result.ranking, base, source), result.ranking, base.job, true, width);
    out += refinement(result, base.job, columns);
    if (result.ranking.size() == options.rows) out += "more of them: --all\n";
    out += schedule::wrapped(ties(result.ranking, sureness_of(source, options.world)), columns, 4);
    out += best_of_pp(result, base, source, width);
    std::string first = "\nthe first one's step:";
    for (const auto& [part, seconds] : result.time.parts())
      first += fmt::format("  {} {}", part, schedule::format_seconds(seconds));
    first += "\nits fullest rank, GB:";
    for (const auto& [kind, bytes] : result.ranking.front().bytes.kinds())
      first += fmt::format("  {} {:.2f}", kind, in_gb(static_cast<double>(bytes)));
    out += schedule::wrapped(first, columns, 4) + '\n';
  }
  std::string others = "\nwhy the others lose (the best of each):\n";
  for (const Loser& loser : result.losers) {
    const mesh::MeshShape& mesh = loser.candidate.layout.mesh;
    const bool slower = loser.candidate.fits && !result.ranking.empty();
    others += fmt::format("  {} ({}{})\n    {}{}\n", loser.what, mesh.describe(),
                          mesh.ep > 1 ? fmt::format(", ep {}", mesh.ep) : "",
                          slower ? fmt::format("{:.2f} x the time: ",
                                               loser.candidate.step_time / result.ranking.front().step_time)
                                 : "",
                          loser.why);
  }
  return out + schedule::wrapped(others, columns, 6);
}

std::string meshes_json(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                        const SearchOptions& options) {
  Json time;
  for (const auto& [part, seconds] : result.time.parts()) time[part] = seconds;
  Json json{{"world", options.world},
            {"costs", source.description},
            {"ranks_per_host", source.device.ranks_per_host},
            {"bandwidth_within_host", source.device.within_host.bandwidth},
            {"bandwidth_between_hosts", source.device.between_hosts.bandwidth},
            {"budget", options.budget},
            {"samples", result.samples},
            {"seq_len", base.job.train.seq_len},
            {"meshes", result.meshes},
            {"layouts", result.layouts},
            {"simulated", result.simulated},
            {"ranking", Json::array()},
            {"time", time},
            {"losers", Json::array()}};
  for (const Candidate& candidate : result.ranking) json["ranking"].push_back(mesh_json(candidate, base.job));
  for (const Candidate& candidate : result.best_of_pp)
    json["best_of_pp"].push_back(mesh_json(candidate, base.job));
  if (result.refined) json["refined"] = mesh_json(*result.refined, base.job);
  for (const Loser& loser : result.losers) {
    Json one{{"what", loser.what}, {"why", loser.why}};
    one.update(mesh_json(loser.candidate, base.job));
    json["losers"].push_back(std::move(one));
  }
  return json.dump(2) + '\n';
}

std::string meshes_csv(const MeshSearchResult& result, const PlanBase& base) {
  std::string out = "row,";
  for (const auto& [axis, size] : mesh::MeshShape().sizes()) out += axis + ",";
  out += layout_columns(of_meshes) + ",step_time,tokens_per_s,peak_bytes,set\n";
  const auto add = [&](const std::string& row, const Candidate& c) {
    out += row + ",";
    for (const auto& [axis, size] : c.layout.mesh.sizes()) out += fmt::format("{},", size);
    out += fmt::format("{},{},{},{},\"{}\"\n", layout_csv(c.layout, of_meshes), c.step_time, c.tokens_per_s,
                       c.bytes.total(), fmt::join(c.layout.overrides(base.job, true), " "));
  };
  for (size_t row = 0; row < result.ranking.size(); ++row) add(fmt::to_string(row + 1), result.ranking[row]);
  if (result.refined) add("refined", *result.refined);
  return out;
}

}  // namespace pptrain::app
