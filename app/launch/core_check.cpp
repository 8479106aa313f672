#include "app/launch/core_check.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/base/process.h"

namespace pptrain::app {
namespace {

std::string to_text(const RankCores& rank) {
  const nlohmann::json json{{"host", rank.host},
                            {"threads", rank.threads},
                            {"processors", rank.cores.processors},
                            {"of_host", rank.cores.of_host},
                            {"quota", std::isinf(rank.cores.quota) ? 0 : rank.cores.quota},
                            {"group", rank.cores.group}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankCores from_text(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  RankCores rank{.host = json.at("host"), .threads = json.at("threads")};
  json.at("processors").get_to(rank.cores.processors);
  json.at("of_host").get_to(rank.cores.of_host);
  json.at("group").get_to(rank.cores.group);
  if (const double quota = json.at("quota"); quota > 0) rank.cores.quota = quota;
  return rank;
}

// The ranks of the host for which `shares` returns true.
template <class Shares>
CoreSet set_of(std::span<const RankCores> ranks, const RankCores& like, const Shares& shares) {
  CoreSet set{.host = like.host, .of_host = like.cores.of_host};
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].host != like.host || !shares(ranks[rank].cores)) continue;
    set.ranks.push_back(static_cast<int>(rank));
    set.threads += ranks[rank].threads;
  }
  return set;
}

CoreSet on_its_processors(std::span<const RankCores> ranks, const RankCores& like) {
  CoreSet set = set_of(ranks, like, [&](const Cores& cores) {
    return std::ranges::includes(like.cores.processors, cores.processors);
  });
  set.cores = static_cast<double>(like.cores.processors.size());
  return set;
}

CoreSet in_its_group(std::span<const RankCores> ranks, const RankCores& like) {
  CoreSet set = set_of(ranks, like, [&](const Cores& cores) { return cores.group == like.cores.group; });
  set.cores = like.cores.quota;
  set.group = like.cores.group;
  return set;
}

std::string describe_ranks(const CoreSet& set) {
  return set.ranks.size() == 1 ? fmt::format("rank {}", set.ranks.front())
                               : fmt::format("{} ranks", set.ranks.size());
}

std::string describe_cores(const CoreSet& set) {
  std::string text = fmt::format("{:.3g} core{}", set.cores, set.cores == 1 ? "" : "s");
  if (!set.group.empty()) return text + fmt::format(", the quota of {}", set.group);
  if (set.cores < static_cast<double>(set.of_host))
    text += fmt::format(" of {}, to which the launcher binds (mpirun --bind-to none; taskset)", set.of_host);
  return text;
}

}  // namespace

std::vector<RankCores> gather_cores(comm::Communicator& world, const Plan& plan) {
  if (plan.job.run.device != config::Device::cpu) return {};
  const RankCores own{.host = host_name(), .threads = plan.job.run.threads, .cores = process_cores()};
  std::vector<RankCores> ranks;
  for (const std::string& text : comm::gather_strings(world.host(), to_text(own), 0))
    ranks.push_back(from_text(text));
  return ranks;
}

std::vector<CoreSet> crowded_sets(std::span<const RankCores> ranks) {
  std::map<std::string, CoreSet> by_host;
  for (const RankCores& rank : ranks) {
    CoreSet& most = by_host[rank.host];
    const auto consider = [&](CoreSet set) {
      if (most.ranks.empty() || set.load() > most.load()) most = std::move(set);
    };
    consider(on_its_processors(ranks, rank));
    if (!rank.cores.group.empty()) consider(in_its_group(ranks, rank));
  }
  std::vector<CoreSet> sets;
  for (auto& [host, set] : by_host) sets.push_back(std::move(set));
  return sets;
}

std::string describe_crowding(std::span<const RankCores> ranks) {
  std::string text;
  for (const CoreSet& set : crowded_sets(ranks)) {
    if (set.load() <= 1) continue;
    text += fmt::format("{}host {}: {} threads of {} on {}", text.empty() ? "" : "; ", set.host, set.threads,
                        describe_ranks(set), describe_cores(set));
  }
  return text;
}

CoreSharing core_sharing(std::span<const RankCores> ranks) {
  const std::vector<CoreSet> sets = crowded_sets(ranks);
  const auto most = std::ranges::max_element(sets, {}, &CoreSet::load);
  if (most == sets.end()) return {};
  return {.cores = most->cores, .ranks_per_set = static_cast<int>(most->ranks.size())};
}

std::vector<RankCores> ranks_here(int ranks, int64_t threads, const Cores& cores) {
  return {static_cast<size_t>(ranks), RankCores{.host = host_name(), .threads = threads, .cores = cores}};
}

}  // namespace pptrain::app
