#include "parallel/comm/nccl/nccl_communicator.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <nccl.h>
#include <spdlog/fmt/fmt.h>

#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/nccl/device_watch.h"
#include "parallel/comm/nccl/nccl_collectives.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/nccl/nccl_links.h"
#include "parallel/comm/nccl/nccl_member.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

class NcclCommunicator final : public Communicator {
 public:
  // `owned` is null for the whole job's communicator: the caller keeps `host`. `job_rank`: this rank's number
  // in the job. `of`: what all communicators of a rank have in common.
  NcclCommunicator(Communicator& host, std::unique_ptr<Communicator> owned, int job_rank, NcclMember of)
      : owned_(std::move(owned)), host_(host), member_(std::move(of)) {
    member_.rank = host.rank();
    member_.job_ranks = gather_values(host, job_rank);
  }
  // The job's communicator stops the watchdog before `host` goes, which the watchdog asks.
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

  void connect(std::span<const std::pair<int, int>> pairs, int blocks) override {
    const c10::cuda::CUDAGuard guard(member_.device);
    links_->connect(pairs, blocks);
  }
  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override {
    check_peer(destination, rank(), size(), "isend");
    if (tensor.is_cpu()) return host().isend(tensor, destination);
    return links_->start(tensor, rank(), destination);
  }

  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override {
    check_peer(source, rank(), size(), "irecv");
    if (tensor.is_cpu()) return host().irecv(std::move(tensor), source);
    return links_->start(std::move(tensor), source, rank());
  }

  std::unique_ptr<Communicator> subgroup(std::span<const int> members) override {
    auto part = host_.subgroup(members);
    Communicator& host = *part;
    return std::make_unique<NcclCommunicator>(host, std::move(part), member_.job_rank(), member_);
  }

  void all_reduce_sum(at::Tensor tensor) override {
    check_contiguous(tensor, "all_reduce_sum");
    if (tensor.is_cpu()) return host().all_reduce_sum(std::move(tensor));
    iall_reduce_sum(std::move(tensor))->wait();
  }

  void broadcast(at::Tensor tensor, int root) override {
    check_contiguous(tensor, "broadcast");
    if (tensor.is_cpu()) return host().broadcast(std::move(tensor), root);
    check_root(root, size());
    if (size() == 1 || tensor.numel() == 0) return;
    collectives().broadcast(std::move(tensor), root)->wait();
  }

  void all_gather(at::Tensor out, const at::Tensor& tensor) override {
    check_contiguous(tensor, "all_gather");
    if (tensor.is_cpu()) return host().all_gather(std::move(out), tensor);
    check_contiguous(out, "all_gather");
    check_rows(out, tensor, size());
    iall_gather(std::move(out), tensor)->wait();
  }

  // A barrier of the host threads; the GPUs may be behind.
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
    return collectives().all_reduce_sum(std::move(tensor), host_blocks());
  }
  std::unique_ptr<Work> start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor, Counts counts,
                                                 std::span<const int> order) override {
    if (tensor.is_cpu()) return host().ireduce_scatter_sum(std::move(out), tensor, counts, order);
    return collectives().reduce_scatter_sum(std::move(out), Parts(std::move(tensor), counts, order),
                                            host_blocks());
  }
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor tensor, Counts counts) override {
    if (tensor.is_cpu()) return host().iall_gather(std::move(out), tensor, counts);
    return collectives().all_gather(std::move(out), std::move(tensor), {counts.begin(), counts.end()},
                                    host_blocks());
  }
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, std::vector<int64_t> from, at::Tensor tensor,
                                         std::vector<int64_t> to) override {
    if (tensor.is_cpu()) return host().iall_to_all(std::move(out), from, tensor, to);
    return collectives().all_to_all(std::move(out), std::move(from), std::move(tensor), std::move(to));
  }

  // Made at the first collective of CUDA tensors: most groups carry only values of the hosts.
  NcclCollectives& collectives() {
    if (!collectives_) {
      const std::string id = broadcast_string(host(), rank() == 0 ? new_nccl_id() : "", 0);
      const c10::cuda::CUDAGuard guard(member_.device);
      collectives_ = std::make_unique<NcclCollectives>(member_, id);
    }
    return *collectives_;
  }

  const std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  NcclMember member_;
  std::unique_ptr<NcclCollectives> collectives_;  // of two ranks or more
  std::unique_ptr<DeviceLinks> links_ = std::make_unique<DeviceLinks>(member_, host_);
};

}  // namespace

std::string nccl_version() {
  int version = 0;
  ncclGetVersion(&version);
  return nccl_version_text(version);
}

std::unique_ptr<Communicator> make_nccl(Communicator& host, c10::Device device, const NcclOptions& options) {
  if (!device.is_cuda()) throw Error(fmt::format("NCCL carries CUDA tensors; {} is no GPU", device.str()));
  if (!device.has_index()) device = c10::Device(at::kCUDA, c10::cuda::current_device());
  const c10::cuda::CUDAGuard guard(device);
  check_ranks(host, device);
  DeviceWatchdog::Options watchdog_options;
  watchdog_options.on_thread = [device] { c10::cuda::set_device(device.index()); };
  auto watchdog =
      std::make_shared<DeviceWatchdog>(DeviceWatch::Hooks{.host_failure = [&host] { return host.failure(); },
                                                          .device_place = options.device_place},
                                       std::move(watchdog_options));
  NcclMember member{.device = device};
  member.watchdog = std::move(watchdog);
  member.set_up_timeout = member.timeout = options.timeout;
  member.group_blocks = options.group_blocks;
  return std::make_unique<NcclCommunicator>(host, nullptr, host.rank(), std::move(member));
}

}  // namespace pptrain::comm
