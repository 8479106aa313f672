#include "parallel/comm/nccl/gpu_ranks.h"

#include <spdlog/fmt/fmt.h>

#include <cstddef>
#include <map>

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

std::vector<std::vector<int>> exchange_rounds(int ranks) {
  constexpr size_t most_distances = 128;  // a send and a receive each
  std::vector<std::vector<int>> rounds;
  for (int distance = 1; distance < ranks; ++distance) {
    if (rounds.empty() || rounds.back().size() == most_distances) rounds.emplace_back();
    rounds.back().push_back(distance);
  }
  return rounds;
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
