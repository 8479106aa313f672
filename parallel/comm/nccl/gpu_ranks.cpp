#include "parallel/comm/nccl/gpu_ranks.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <utility>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

std::string model_of(const GpuRank& rank) {
  return std::string(rank.model.data());
}

void check_environment(const GpuRank& rank, size_t number) {
  if (!rank.blocking) return;
  throw UsageError(fmt::format(
      "rank {} has NCCL_COMM_BLOCKING=1 in its environment: then nothing could end a call of NCCL "
      "that waits for a lost rank; unset it",
      number));
}

void check_nccl_versions(const GpuRank& rank, size_t number, const GpuRank& first) {
  constexpr int per_minor = 100;
  if (rank.nccl != first.nccl)
    throw UsageError(fmt::format("rank 0 runs NCCL {}, rank {} NCCL {}: all ranks need the same one",
                                 nccl_version_text(first.nccl), number, nccl_version_text(rank.nccl)));
  if (rank.nccl / per_minor >= rank.nccl_built_with / per_minor) return;
  throw UsageError(
      fmt::format("rank {} runs NCCL {}, but pptrain was built with {}: another libnccl.so.2 is found first "
                  "(LD_LIBRARY_PATH, LD_PRELOAD)",
                  number, nccl_version_text(rank.nccl), nccl_version_text(rank.nccl_built_with)));
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string check_gpu_ranks(std::span<const GpuRank> ranks) {
  std::map<std::array<char, 16>, size_t> owners;
  std::string warning;
  for (size_t number = 0; number < ranks.size(); ++number) {
    const GpuRank& rank = ranks[number];
    check_environment(rank, number);
    check_nccl_versions(rank, number, ranks.front());
    const auto [owner, is_new] = owners.emplace(rank.uuid, number);
    if (!is_new && !(rank.may_share && ranks[owner->second].may_share)) {
      throw UsageError(
          fmt::format("ranks {} and {} share one GPU ({}), which NCCL does not support: start at most one "
                      "process per GPU, or start pptrain without a launcher, where ranks are threads and may "
                      "share a GPU",
                      owner->second, number, model_of(rank)));
    }
    const bool differs = rank.model != ranks.front().model || rank.processors != ranks.front().processors;
    if (differs && warning.empty()) {
      warning = fmt::format(
          "rank 0 has a {} with {} multiprocessors, rank {} a {} with {}: libraries choose kernels by the "
          "GPU, "
          "so results then depend on which rank has which layers",
          model_of(ranks.front()), ranks.front().processors, number, model_of(rank), rank.processors);
    }
  }
  return warning;
}

// A message's group follows from the distance of its ranks and its number among their messages.
std::vector<Parcels> groups_of_calls(const Parcels& parcels, int me, int ranks, int several) {
  constexpr int most_pairs = 128;  // of a send and a receive in a group
  const int turns = std::max(1, most_pairs / std::max(1, several));
  std::map<std::pair<int, int>, Parcels> groups;
  const auto add = [&](const std::vector<Parcel>& all, std::vector<Parcel> Parcels::*way) {
    std::map<int, int> numbers;  // [peer] Parcels before
    for (const Parcel& parcel : all) {
      if (parcel.tensor.numel() == 0) continue;
      const int apart = std::abs(parcel.peer - me), distance = std::min(apart, ranks - apart);
      const int round = (distance - 1) / (most_pairs / 2);  // both ways
      (groups[{round, numbers[parcel.peer]++ / turns}].*way).push_back(parcel);
    }
  };
  add(parcels.in, &Parcels::in);
  add(parcels.out, &Parcels::out);
  std::vector<Parcels> result;
  for (auto& [place, group] : groups) result.push_back(std::move(group));
  return result;
}

std::shared_ptr<void> ThreadBlocks::take(int blocks, const std::string& name) const {
  if (*taken_ + blocks > most)
    throw UsageError(
        fmt::format("{} would be one NCCL communicator too many: with {} thread blocks in all instead of at "
                    "most {}, kernels "
                    "of NCCL may wait for each other for ever. Use fewer axes of parallelism at once, or "
                    "pp_head = \"last\"",
                    name, *taken_ + blocks, most));
  *taken_ += blocks;
  return {taken_.get(), [taken = taken_, blocks](void*) { *taken -= blocks; }};
}

}  // namespace pptrain::comm
