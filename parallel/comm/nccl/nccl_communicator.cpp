#include "parallel/comm/nccl/nccl_communicator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <nccl.h>
#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "parallel/comm/nccl/device_watchdog.h"
#include "parallel/comm/nccl/nccl_collectives.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/nccl/nccl_member.h"
#include "parallel/comm/nccl/nccl_transfers.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

class NcclCommunicator final : public Communicator {
 public:
  // `owned` is null where the caller keeps the host communicator: that of the whole job. `job_rank`: this
  // rank's there.
  NcclCommunicator(Communicator& host, std::unique_ptr<Communicator> owned, int job_rank, c10::Device device,
                   WatchdogPtr watchdog, std::chrono::milliseconds timeout)
      : owned_(std::move(owned)),
        host_(host),
        member_{.device = device,
                .watchdog = std::move(watchdog),
                .rank = host.rank(),
                .job_ranks = ranks_of_job(host, job_rank),
                .timeout = timeout} {
    if (size() == 1) return;
    const std::string id = broadcast_string(host_, rank() == 0 ? new_nccl_id() : "", 0);
    const c10::cuda::CUDAGuard guard(device);
    collectives_ = std::make_unique<NcclCollectives>(member_, id);
  }
  // The job's communicator stops the watchdog, which asks the host's, before that goes.
  ~NcclCommunicator() override {
    links_.reset();
    collectives_.reset();
    if (!owned_) member_.watchdog->stop();
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return member_.rank; }
  int size() const override { return member_.size(); }
  // Once NCCL has failed, what came from the GPU means nothing: no rank goes on with it.
  Communicator& host() override {
    member_.watch().throw_if_failed();
    return host_;
  }
  void progress() override {
    member_.watch().check();
    host_.progress();
  }

  void connect(std::span<const std::pair<int, int>> pairs) override {
    const c10::cuda::CUDAGuard guard(member_.device);
    links_->connect(pairs);
  }
  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override;
  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override;
  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override;

  void all_reduce_sum(at::Tensor tensor) override;
  void broadcast(at::Tensor tensor, int root) override;
  void all_gather(at::Tensor out, const at::Tensor& tensor) override;
  // Of the host threads; the GPUs may be behind.
  void barrier() override { host().barrier(); }

  void abort(const std::string& message) override { host_.abort(message); }
  std::string failure() const override { return host_.failure(); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    member_.timeout = timeout;
    host_.set_timeout(timeout);
  }

 private:
  std::unique_ptr<Work> start_all_reduce_sum(at::Tensor tensor) override {
    if (tensor.is_cpu()) return host().iall_reduce_sum(std::move(tensor));
    return collectives_->all_reduce_sum(std::move(tensor));
  }
  std::unique_ptr<Work> start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor,
                                                 std::vector<int64_t> counts) override {
    if (tensor.is_cpu()) return host().ireduce_scatter_sum(std::move(out), tensor, counts);
    return collectives_->reduce_scatter_sum(std::move(out), std::move(tensor), std::move(counts));
  }
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor tensor,
                                         std::vector<int64_t> counts) override {
    if (tensor.is_cpu()) return host().iall_gather(std::move(out), tensor, counts);
    return collectives_->all_gather(std::move(out), std::move(tensor), std::move(counts));
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, std::vector<int64_t> from, at::Tensor tensor,
                                         std::vector<int64_t> to) override {
    if (tensor.is_cpu()) return host().iall_to_all(std::move(out), from, tensor, to);
    return collectives_->all_to_all(std::move(out), std::move(from), std::move(tensor), std::move(to));
  }

  const std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  NcclMember member_;
  std::unique_ptr<NcclCollectives> collectives_;  // of two ranks or more
  std::unique_ptr<NcclLinks> links_ = std::make_unique<NcclLinks>(member_, host_);
};

std::unique_ptr<Work> NcclCommunicator::isend(const at::Tensor& tensor, int destination) {
  check_peer(destination, rank(), size(), "isend");
  if (tensor.is_cpu()) return host().isend(tensor, destination);
  return links_->start(tensor, rank(), destination);
}

std::unique_ptr<Work> NcclCommunicator::irecv(at::Tensor tensor, int source) {
  check_peer(source, rank(), size(), "irecv");
  if (tensor.is_cpu()) return host().irecv(std::move(tensor), source);
  return links_->start(std::move(tensor), source, rank());
}

std::unique_ptr<Communicator> NcclCommunicator::subgroup(std::span<const int> members) {
  auto part = host_.subgroup(members);
  Communicator& host = *part;
  return std::make_unique<NcclCommunicator>(host, std::move(part), member_.job_rank(), member_.device,
                                            member_.watchdog, member_.timeout);
}

void NcclCommunicator::all_reduce_sum(at::Tensor tensor) {
  check_contiguous(tensor, "all_reduce_sum");
  if (tensor.is_cpu()) return host().all_reduce_sum(std::move(tensor));
  iall_reduce_sum(std::move(tensor))->wait();
}

void NcclCommunicator::broadcast(at::Tensor tensor, int root) {
  check_contiguous(tensor, "broadcast");
  if (tensor.is_cpu()) return host().broadcast(std::move(tensor), root);
  check_root(root, size());
  if (size() == 1 || tensor.numel() == 0) return;
  collectives_->broadcast(std::move(tensor), root)->wait();
}

void NcclCommunicator::all_gather(at::Tensor out, const at::Tensor& tensor) {
  check_contiguous(tensor, "all_gather");
  if (tensor.is_cpu()) return host().all_gather(std::move(out), tensor);
  check_contiguous(out, "all_gather");
  check_rows(out, tensor, size());
  iall_gather(std::move(out), tensor)->wait();
}

}  // namespace

std::string nccl_version() {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Communicator> make_nccl(Communicator& host, c10::Device device, NcclOptions options) {
  if (!device.is_cuda()) throw Error(fmt::format("NCCL carries CUDA tensors; {} is no GPU", device.str()));
  if (!device.has_index()) device = c10::Device(at::kCUDA, c10::cuda::current_device());
  const c10::cuda::CUDAGuard guard(device);
  check_ranks(host, device);
  DeviceWatchdog::Options watchdog_options;
  watchdog_options.on_thread = [device] { c10::cuda::set_device(device.index()); };
  auto watchdog =
      std::make_shared<DeviceWatchdog>(DeviceWatch::Hooks{.host_failure = [&host] { return host.failure(); },
                                                          .device_place = std::move(options.device_place)},
                                       std::move(watchdog_options));
  return std::make_unique<NcclCommunicator>(host, nullptr, host.rank(), device, std::move(watchdog),
                                            options.timeout);
}

}  // namespace pptrain::comm
