#include "parallel/comm/nccl/nccl_member.h"

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
#include "parallel/comm/timed_wait.h"

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

DeviceEvent record(c10::cuda::CUDAStream stream) {
  auto event = std::make_shared<at::cuda::CUDAEvent>();
  event->record(stream);
  return event;
}

void SideEnd::reach(c10::cuda::CUDAStream stream) {
  {
    const std::lock_guard lock(mutex_);
    event_.record(stream);
    reached_ = true;
  }
  changed_.notify_all();
}

void SideEnd::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    error_ = std::move(error);
  }
  changed_.notify_all();
}

bool SideEnd::wait_for(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return reached_ || error_; });
  if (error_) std::rethrow_exception(error_);
  return reached_;
}

namespace {

// The handle of work on a stream other than the rank's own. The work goes on until `end`, on `tensors`
// (scratch included), whose memory belongs to the stream `home`; `ticket` is the watch's.
class SideWork final : public Work {
 public:
  SideWork(WatchdogPtr watchdog, c10::cuda::CUDAStream home, std::shared_ptr<SideEnd> end,
           DeviceWatch::Ticket ticket, std::vector<at::Tensor> tensors)
      : watchdog_(std::move(watchdog)),
        home_(home),
        end_(std::move(end)),
        ticket_(std::move(ticket)),
        tensors_(std::move(tensors)) {}
  // The side stream may still use the tensors: then the watch holds them.
  ~SideWork() override { leave_tensors_to_watch(); }
  SideWork(const SideWork&) = delete;
  SideWork& operator=(const SideWork&) = delete;

  bool done() override {
    watchdog_->watch().check();
    if (!end_->passed()) return false;
    tensors_.clear();
    return true;
  }
  // Orders the current stream behind the side stream, once another thread has put the work there. If it is
  // the tensors' home, their memory may go to other uses on it from then on, and they are let go; on any
  // other stream the watch holds them until they are free.
  void wait(const std::function<std::string()>& what) override {
    watchdog_->watch().check();
    if (what) watchdog_->watch().explain(ticket_, what());
    while (!wait_for(look_again)) watchdog_->watch().check();
    const auto current = c10::cuda::getCurrentCUDAStream(home_.device_index());
    end_->block(current);
    if (current == home_) {
      tensors_.clear();
    } else {
      leave_tensors_to_watch();
    }
  }
  bool wait_for(std::chrono::milliseconds time) override {
    if (end_->wait_for(std::chrono::milliseconds(0))) return true;
    const TimedWait timed;
    return end_->wait_for(time);
  }

 private:
  static constexpr std::chrono::milliseconds look_again{100};

  void leave_tensors_to_watch() {
    if (!tensors_.empty()) watchdog_->watch().keep(ticket_, std::move(tensors_));
    tensors_.clear();
  }

  const WatchdogPtr watchdog_;
  const c10::cuda::CUDAStream home_;
  const std::shared_ptr<SideEnd> end_;
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
  const DeviceEvent ready = record(home);
  ready->block(stream);
  {
    const c10::cuda::CUDAStreamGuard on(stream);
    const c10::InferenceMode inference;
    body();
  }
  auto end = std::make_shared<SideEnd>();
  end->reach(stream);
  return follow(side, what, std::move(tensors), ready, std::move(end));
}

std::unique_ptr<Work> NcclMember::follow(cudaStream_t side, const std::string& what,
                                         std::vector<at::Tensor> tensors, const DeviceEvent& ready,
                                         std::shared_ptr<SideEnd> end) const {
  auto ticket = watch().post({.queue = side,
                              .ready = [ready] { return ready->query(); },
                              .finished = [end] { return end->passed(); },
                              .timeout = timeout,
                              .rank = job_rank(),
                              .description = what});
  return std::make_unique<SideWork>(watchdog, current_stream(), std::move(end), std::move(ticket),
                                    std::move(tensors));
}

void NcclMember::synchronize() const {
  const DeviceEvent event = record(current_stream());
  while (!event->query()) {
    watch().check();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

}  // namespace pptrain::comm
