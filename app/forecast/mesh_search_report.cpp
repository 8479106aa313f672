#include "app/forecast/mesh_search_report.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "app/forecast/search_report.h"
#include "app/plan/plan.h"
#include "parallel/schedule/render/text_layout.h"

namespace pptrain::app {

namespace {

using Json = nlohmann::ordered_json;

double in_gb(double bytes) {
  return bytes / 1e9;
}

std::string header(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                   const MeshSearchOptions& options) {
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

std::vector<std::string> row(const MeshCandidate& c) {
  const mesh::MeshShape& m = c.layout.mesh;
  std::vector<std::string> cells{c.layout.schedule};
  for (const int size : {m.pp, m.dp_replicate, m.dp_shard, m.cp, m.tp, m.ep})
    cells.push_back(fmt::to_string(size));
  cells.push_back(schedule::format_seconds(c.step_time));
  cells.push_back(schedule::with_commas(c.tokens_per_s));
  cells.push_back(fmt::format("{:.2f} GB", in_gb(static_cast<double>(c.bytes.total()))));
  return cells;
}

// The rows of the ranking, each with the --set line that makes the job so.
std::string rows(const std::vector<MeshCandidate>& ranking, int width) {
  std::vector<std::vector<std::string>> cells{
      {"#", "schedule", "pp", "rep", "shard", "cp", "tp", "ep", "step", "tokens/s", "peak"}};
  for (size_t i = 0; i < ranking.size(); ++i) {
    cells.push_back(row(ranking[i]));
    cells.back().insert(cells.back().begin(), fmt::to_string(i + 1));
  }
  const std::string lines = schedule::table(cells, 2);
  std::string out;
  size_t begin = 0;
  for (size_t i = 0; i < cells.size(); ++i) {
    const size_t end = lines.find('\n', begin) + 1;
    out += lines.substr(begin, end - begin);
    begin = end;
    if (i > 0) out += set_line(ranking[i - 1].layout.overrides(), 5, width);
  }
  return out;
}

Json candidate_json(const MeshCandidate& c) {
  Json bytes;
  for (const auto& [kind, count] : c.bytes.kinds()) bytes[kind] = count;
  bytes["total"] = c.bytes.total();
  return {{"pp", c.layout.mesh.pp},
          {"dp_replicate", c.layout.mesh.dp_replicate},
          {"dp_shard", c.layout.mesh.dp_shard},
          {"cp", c.layout.mesh.cp},
          {"tp", c.layout.mesh.tp},
          {"ep", c.layout.mesh.ep},
          {"pp_schedule", c.layout.schedule},
          {"pp_stages_per_rank", c.layout.stages_per_rank},
          {"layers_per_stage", pipeline::layers_per_stage(c.layout.layers)},
          {"micro_batch_size", c.layout.micro_batch_size},
          {"grad_accum_steps", c.layout.grad_accum_steps},
          {"recompute", describe_recompute(c.layout.recompute)},
          {"reshard_after_forward", c.layout.reshard},
          {"reduce_gradients", c.layout.every_microbatch ? "microbatch" : "step"},
          {"step_time", c.step_time},
          {"tokens_per_s", c.tokens_per_s},
          {"bytes", bytes},
          {"fits", c.fits},
          {"set", c.layout.overrides()}};
}

}  // namespace

std::string render_meshes(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                          const MeshSearchOptions& options, int width) {
  const auto columns = static_cast<size_t>(width);
  std::string out = schedule::wrapped(header(result, base, source, options), columns, 4);
  if (result.ranking.empty()) {
    out += "nothing fits: use more ranks, or more memory\n";
  } else {
    out += rows(result.ranking, width);
    if (result.ranking.size() == options.rows) out += "more of them: --all\n";
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
                        const MeshSearchOptions& options) {
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
  for (const MeshCandidate& candidate : result.ranking) json["ranking"].push_back(candidate_json(candidate));
  for (const Loser& loser : result.losers) {
    Json one{{"what", loser.what}, {"why", loser.why}};
    one.update(candidate_json(loser.candidate));
    json["losers"].push_back(one);
  }
  return json.dump(2) + '\n';
}

std::string meshes_csv(const MeshSearchResult& result) {
  std::string out =
      "pp,dp_replicate,dp_shard,cp,tp,ep,pp_schedule,pp_stages_per_rank,layers_per_stage,micro_batch_size,"
      "grad_accum_steps,recompute,reshard_after_forward,reduce_gradients,step_time,tokens_per_s,peak_bytes,"
      "set\n";
  for (const MeshCandidate& c : result.ranking) {
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},\"{}\"\n", c.layout.mesh.pp,
                       c.layout.mesh.dp_replicate, c.layout.mesh.dp_shard, c.layout.mesh.cp, c.layout.mesh.tp,
                       c.layout.mesh.ep, c.layout.schedule, c.layout.stages_per_rank,
                       fmt::join(pipeline::layers_per_stage(c.layout.layers), "+"), c.layout.micro_batch_size,
                       c.layout.grad_accum_steps, fmt::join(c.layout.recompute, "+"), c.layout.reshard,
                       c.layout.every_microbatch ? "microbatch" : "step", c.step_time, c.tokens_per_s,
                       c.bytes.total(), fmt::join(c.layout.overrides(), " "));
  }
  return out;
}

}  // namespace pptrain::app
