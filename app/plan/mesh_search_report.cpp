#include "app/plan/mesh_search_report.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "app/plan/stage_recompute.h"

namespace pptrain::app {

namespace {

using Json = nlohmann::ordered_json;

double in_gb(double bytes) {
  return bytes / 1e9;
}

std::string header(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                   const MeshSearchOptions& options) {
  const models::DeviceModel& device = source.device;
  std::string text = fmt::format("{} ranks; costs {}", options.world, source.description);
  if (device.ranks_per_host > 0) {
    text += fmt::format("; hosts of {} ranks, {:.3g} GB/s a rank within a host, {:.3g} between hosts",
                        device.ranks_per_host, device.within_host.bandwidth / 1e9,
                        device.between_hosts.bandwidth / 1e9);
  }
  text +=
      options.budget > 0 ? fmt::format("; {:.2f} GB a rank", in_gb(options.budget)) : "; no bound on memory";
  text += fmt::format("\nkept: {} samples of {} tokens a step\n", result.samples, base.job.train.seq_len);
  return text +
         fmt::format(
             "{} meshes, {} layouts; {} simulated with every schedule, the others take longer or more memory "
             "by what they hold and compute at least\n\n",
             result.meshes, result.layouts, result.simulated);
}

std::string row(const MeshCandidate& c) {
  std::string weights = c.reshard ? "streamed" : "kept";
  if (c.mesh.size(mesh::Group::fsdp) == 1 && c.mesh.size(mesh::Group::efsdp) == 1) weights = "whole";
  if (c.every_microbatch) weights += ", mb";
  return fmt::format(
      "{:>3} {:>6} {:>6} {:>3} {:>3} {:>3}  {:<17} {:>2} {:>4} {:>4}  {:<9} {:<12} {:>9.4g} {:>10.0f} "
      "{:>8.2f}",
      c.mesh.pp, c.mesh.dp_replicate, c.mesh.dp_shard, c.mesh.cp, c.mesh.tp, c.mesh.ep, c.choice.schedule,
      c.choice.stages_per_rank, c.choice.grad_accum_steps, c.choice.micro_batch_size,
      describe_recompute(c.choice.recompute), weights, c.step_time, c.tokens_per_s,
      in_gb(static_cast<double>(c.bytes.total())));
}

constexpr const char* columns =
    " pp dp_rep dp_shd  cp  tp  ep  schedule           v    m  mbs  recompute weights       step, s      "
    "tok/s  peak, GB";

Json candidate_json(const MeshCandidate& c) {
  Json bytes;
  for (const auto& [kind, count] : c.bytes.kinds()) bytes[kind] = count;
  bytes["total"] = c.bytes.total();
  return {{"pp", c.mesh.pp},
          {"dp_replicate", c.mesh.dp_replicate},
          {"dp_shard", c.mesh.dp_shard},
          {"cp", c.mesh.cp},
          {"tp", c.mesh.tp},
          {"ep", c.mesh.ep},
          {"pp_schedule", c.choice.schedule},
          {"pp_stages_per_rank", c.choice.stages_per_rank},
          {"layers_per_stage", pipeline::layers_per_stage(c.choice.layers)},
          {"micro_batch_size", c.choice.micro_batch_size},
          {"grad_accum_steps", c.choice.grad_accum_steps},
          {"recompute", describe_recompute(c.choice.recompute)},
          {"reshard_after_forward", c.reshard},
          {"reduce_gradients", c.every_microbatch ? "microbatch" : "step"},
          {"step_time", c.step_time},
          {"tokens_per_s", c.tokens_per_s},
          {"bytes", bytes},
          {"fits", c.fits}};
}

}  // namespace

std::string render_meshes(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                          const MeshSearchOptions& options) {
  std::string out = header(result, base, source, options);
  if (result.ranking.empty()) {
    out += "nothing fits: use more ranks, or more memory\n";
  } else {
    out += fmt::format("    {}\n", columns);
    for (size_t i = 0; i < result.ranking.size(); ++i)
      out += fmt::format("{:>3} {}\n", i + 1, row(result.ranking[i]));
    const MeshCandidate& best = result.ranking.front();
    out += "\nthe first one's step, s:";
    for (const auto& [part, seconds] : result.time.parts()) out += fmt::format("  {} {:.3g}", part, seconds);
    out += fmt::format("\nits fullest rank, GB:");
    for (const auto& [kind, bytes] : best.bytes.kinds())
      out += fmt::format("  {} {:.2f}", kind, in_gb(static_cast<double>(bytes)));
    out += "\nas keys of the job:\n";
    for (const std::string& key : best.overrides()) out += fmt::format("  --set {}", key);
    out += '\n';
  }
  out += "\nwhy the others lose (the best of each):\n";
  for (const Loser& loser : result.losers) {
    const mesh::MeshShape& mesh = loser.candidate.mesh;
    const std::string where =
        fmt::format("{}{}", mesh.describe(), mesh.ep > 1 ? fmt::format(", ep {}", mesh.ep) : "");
    const bool slower = loser.candidate.fits && !result.ranking.empty();
    out += fmt::format("  {:<36} {:<52} {}{}\n", loser.what, where,
                       slower ? fmt::format("{:.2f} x the time: ",
                                            loser.candidate.step_time / result.ranking.front().step_time)
                              : "",
                       loser.why);
  }
  return out;
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

}  // namespace pptrain::app
