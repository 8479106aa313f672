#include "parallel/comm/nccl/nccl_member.h"

#include <ATen/cuda/CUDAEvent.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/nccl/gpu_ranks.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

bool is_one(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}

// may_share: this process takes part in a test of several processes on one GPU (scripts/gpu). It is never set
// for work, since kernels that wait for each other then depend on the driver's time slices. NCCL itself takes
// such ranks for ranks of different hosts, over sockets, only if each process has an NCCL_HOSTID of its own.
GpuRank own_rank(const cudaDeviceProp& properties) {
  GpuRank own{.processors = properties.multiProcessorCount,
              .nccl_built_with = NCCL_VERSION_CODE,
              .may_share = is_one("PPTRAIN_NCCL_SHARED_GPU"),
              .blocking = is_one("NCCL_COMM_BLOCKING")};
  check_nccl(ncclGetVersion(&own.nccl), "ncclGetVersion");
  std::memcpy(own.uuid.data(), properties.uuid.bytes, own.uuid.size());
  std::string_view(properties.name).copy(own.model.data(), own.model.size() - 1);
  return own;
}

}  // namespace

// All ranks see the same, and decide alike.
void check_ranks(Communicator& host, c10::Device device) {
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  const std::string warning = check_gpu_ranks(gather_values(host, own_rank(properties)));
  if (!warning.empty() && host.rank() == 0) spdlog::warn(warning);
}

namespace {

using NcclEvent = std::shared_ptr<at::cuda::CUDAEvent>;

// An event behind what `stream` holds now.
NcclEvent record(c10::cuda::CUDAStream stream) {
  auto event = std::make_shared<at::cuda::CUDAEvent>();
  event->record(stream);
  return event;
}

// The handle of NCCL's work on a stream other than the rank's own. The work goes on until `finished`, on
// `tensors` (scratch included), whose memory belongs to the stream `home`; `ticket` is the watch's.
class NcclWork final : public Work {
 public:
  NcclWork(WatchdogPtr watchdog, c10::cuda::CUDAStream home, NcclEvent finished, DeviceWatch::Ticket ticket,
           std::vector<at::Tensor> tensors)
      : watchdog_(std::move(watchdog)),
        home_(home),
        finished_(std::move(finished)),
        ticket_(std::move(ticket)),
        tensors_(std::move(tensors)) {}
  // The side stream may still use the tensors: then the watch holds them.
  ~NcclWork() override { leave_tensors_to_watch(); }
  NcclWork(const NcclWork&) = delete;
  NcclWork& operator=(const NcclWork&) = delete;

  bool done() override {
    watchdog_->watch().check();
    if (!finished_->query()) return false;
    tensors_.clear();
    return true;
  }
  // Orders the current stream behind the side stream. If that is the tensors' home, their memory may go to
  // other uses on it from then on, and they are let go; on any other stream the watch holds them until they
  // are free.
  void wait(const std::function<std::string()>& what) override {
    watchdog_->watch().check();
    const auto current = c10::cuda::getCurrentCUDAStream(finished_->device_index());
    finished_->block(current);
    if (what) watchdog_->watch().explain(ticket_, what());
    if (current == home_) {
      tensors_.clear();
    } else {
      leave_tensors_to_watch();
    }
  }
  // wait() blocks the current stream, never the host.
  bool wait_for(std::chrono::milliseconds /*time*/) override { return true; }

 private:
  void leave_tensors_to_watch() {
    if (!tensors_.empty()) watchdog_->watch().keep(ticket_, std::move(tensors_));
    tensors_.clear();
  }

  const WatchdogPtr watchdog_;
  const c10::cuda::CUDAStream home_;
  const NcclEvent finished_;
  const DeviceWatch::Ticket ticket_;
  std::vector<at::Tensor> tensors_;
};

std::string name_ranks(std::span<const int> ranks) {
  constexpr size_t shown = 8;
  if (ranks.size() <= shown) return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return fmt::format("{} ranks from {} to {}", ranks.size(), ranks.front(), ranks.back());
}

}  // namespace

CudaStream make_stream() {
  int least = 0;
  int greatest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return {stream, [](cudaStream_t used) { static_cast<void>(cudaStreamDestroy(used)); }};
}

std::string NcclMember::name() const {
  return name_ranks(job_ranks);
}

std::unique_ptr<NcclGroup> NcclMember::make_group(const std::string& id, int nccl_rank,
                                                  std::span<const int> of, int max_ctas) const {
  const std::string name = "the NCCL group of " + name_ranks(of);
  return std::make_unique<NcclGroup>(watchdog, id, nccl_rank, static_cast<int>(of.size()),
                                     NcclGroup::Options{.job_rank = job_rank(),
                                                        .name = name,
                                                        .device = device.index(),
                                                        .timeout = set_up_timeout,
                                                        .max_ctas = max_ctas,
                                                        .blocks = blocks.take(max_ctas, name)});
}

void NcclMember::check_device(const at::Tensor& tensor, const char* what) const {
  check_contiguous(tensor, what);
  if (tensor.device() != device) {
    throw Error(fmt::format("{}: rank {} uses {}, but the tensor is on {}", what, job_rank(), device.str(),
                            tensor.device().str()));
  }
}

std::unique_ptr<Work> NcclMember::run_beside(cudaStream_t side, const std::string& what,
                                             std::vector<at::Tensor> tensors,
                                             const std::function<void()>& body) const {
  watch().check();
  const c10::cuda::CUDAGuard guard(device);
  const auto home = current_stream();
  const auto stream = c10::cuda::getStreamFromExternal(side, device.index());
  const NcclEvent ready = record(home);
  ready->block(stream);
  {
    const c10::cuda::CUDAStreamGuard on(stream);
    const c10::InferenceMode inference;
    body();
  }
  const NcclEvent finished = record(stream);
  auto ticket = watch().post({.queue = side,
                              .ready = [ready] { return ready->query(); },
                              .finished = [finished] { return finished->query(); },
                              .timeout = timeout,
                              .rank = job_rank(),
                              .description = what});
  return std::make_unique<NcclWork>(watchdog, home, finished, std::move(ticket), std::move(tensors));
}

void NcclMember::synchronize() const {
  const NcclEvent event = record(current_stream());
  while (!event->query()) {
    watch().check();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace pptrain::comm
