#include "parallel/comm/nccl/nccl_ranks.h"

#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "parallel/comm/gather_values.h"

namespace pptrain::comm {
namespace {

// What a rank tells of itself, as bytes.
struct Card {
  decltype(cudaDeviceProp::uuid) gpu{};
  bool may_share = false;
  bool blocking = false;
};

bool is_one(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}

// PPTRAIN_NCCL_SHARED_GPU: whether this process takes part in a test of several processes on one GPU
// (scripts/gpu): never set for work, since kernels that wait for each other then depend on the driver's time
// slices. NCCL itself takes such ranks for those of different hosts, over sockets, only where each process
// has an NCCL_HOSTID of its own.
Card own_card(const cudaDeviceProp& properties) {
  return {.gpu = properties.uuid,
          .may_share = is_one("PPTRAIN_NCCL_SHARED_GPU"),
          .blocking = is_one("NCCL_COMM_BLOCKING")};
}

}  // namespace

std::vector<int> ranks_of_job(Communicator& host, int mine) {
  return gather_values(host, mine);
}

// All ranks see the same, and decide alike. NCCL's own message for two ranks on one GPU names neither.
void check_ranks(Communicator& host, c10::Device device) {
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  const std::vector<Card> cards = gather_values(host, own_card(properties));
  std::map<std::string, int> owners;
  for (int r = 0; r < host.size(); ++r) {
    const Card& card = cards[static_cast<size_t>(r)];
    if (card.blocking) {
      throw UsageError(
          fmt::format("rank {} has NCCL_COMM_BLOCKING=1 in its environment: then nothing could end a call of "
                      "NCCL that waits for a lost rank; unset it",
                      r));
    }
    const auto [owner, is_new] = owners.emplace(std::string(card.gpu.bytes, sizeof(card.gpu.bytes)), r);
    if (is_new || (card.may_share && cards[static_cast<size_t>(owner->second)].may_share)) continue;
    throw UsageError(
        fmt::format("ranks {} and {} share one GPU ({}), which NCCL does not support: start at most one "
                    "process per GPU, or start pptrain without a launcher, where ranks are threads and may "
                    "share a GPU",
                    owner->second, r, properties.name));
  }
}

}  // namespace pptrain::comm
