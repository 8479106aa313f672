#include "parallel/comm/nccl/nccl_communicator.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <nccl.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/host_values.h"
#include "parallel/comm/nccl/device_watch.h"
#include "parallel/comm/nccl/nccl_collectives.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/nccl/nccl_member.h"
#include "parallel/comm/operands.h"

namespace pptrain::comm {
namespace {

// Point-to-point traffic: each direction between two ranks has an NCCL communicator and a stream of its own,
// so that no other traffic can stand in its way.
class NcclLinks {
 public:
  // `member` and `host`, which carries the set-up's messages, must outlive it.
  NcclLinks(const NcclMember& member, Communicator& host) : member_(member), host_(host) {}
  // The end of a link may wait for the other rank's: so all ranks end their links in the same order.
  ~NcclLinks() {
    while (!links_.empty()) links_.erase(links_.begin());
  }

  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  // As Communicator::connect, on the current device. A message goes over each new link at once, which makes
  // all its connections: NCCL connects a pair at its first message, whatever its size, on all the channels
  // that a larger one would take (NCCL 2.28.9, enqueue.cc, p2pTaskAppend).
  // The order is the same everywhere: both ranks of the first pair that is not made yet come to it.
  void connect(std::span<const std::pair<int, int>> pairs, int blocks) {
    for (const auto& [sender, receiver] : pairs) {
      const int top = std::max(sender, receiver);
      if (sender == receiver || std::min(sender, receiver) < 0 || top >= member_.size()) {
        throw Error(
            fmt::format("connect: {} -> {} is no pair of a group of {}", sender, receiver, member_.size()));
      }
      const bool mine = sender == member_.rank || receiver == member_.rank;
      if (mine && !links_.contains({sender, receiver})) make_link(sender, receiver, blocks);
    }
  }

  // Moves the tensor from `sender` to `receiver`; this rank is one of them. Throws Error if the pair was not
  // connected or the tensor is on another device.
  std::unique_ptr<Work> start(at::Tensor tensor, int sender, int receiver) const {
    const bool sends = sender == member_.rank;
    member_.check_device(tensor, sends ? "isend" : "irecv");
    const Link& way = link(sender, receiver);
    const std::string what = describe_message(sends, member_.job_ranks[sends ? receiver : sender]);
    return member_.run_beside(way.stream.get(), what, {tensor}, [&] {
      const size_t bytes = tensor.nbytes();
      const cudaStream_t stream = way.stream.get();
      way.group->enqueue(what, member_.timeout, [&](ncclComm_t comm) {
        return sends ? ncclSend(tensor.const_data_ptr(), bytes, ncclUint8, 1, comm, stream)
                     : ncclRecv(tensor.mutable_data_ptr(), bytes, ncclUint8, 0, comm, stream);
      });
    });
  }

 private:
  // The sender is rank 0 of the two.
  struct Link {
    CudaStream stream;  // goes last
    std::unique_ptr<NcclGroup> group;
  };

  void make_link(int sender, int receiver, int blocks) {
    const std::string id = share_id(sender, receiver);
    Link link;
    link.stream = make_stream();
    const std::array<int, 2> pair{member_.job_ranks[sender], member_.job_ranks[receiver]};
    link.group = member_.make_group(id, sender == member_.rank ? 0 : 1, pair, blocks);
    links_.emplace(std::pair(sender, receiver), std::move(link));
    const at::Tensor token = at::empty({1}, at::TensorOptions().dtype(at::kByte).device(member_.device));
    start(token, sender, receiver)->wait([] { return "the first message of an NCCL link"; });
    member_.synchronize();
  }

  // The sender names the link.
  std::string share_id(int sender, int receiver) const {
    const auto what = [] { return "the set-up of an NCCL link"; };
    const at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof(ncclUniqueId))}, at::kByte);
    if (sender == member_.rank) {
      const std::string id = new_nccl_id();
      std::memcpy(bytes.mutable_data_ptr(), id.data(), id.size());
      host_.isend(bytes, receiver)->wait(what);
    } else {
      host_.irecv(bytes, sender)->wait(what);
    }
    return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
  }

  const Link& link(int sender, int receiver) const {
    const auto found = links_.find({sender, receiver});
    if (found == links_.end()) {
      throw Error(fmt::format(
          "ranks {} -> {} of a group of {} have no NCCL link: name the pair in connect() at set-up", sender,
          receiver, member_.size()));
    }
    return found->second;
  }

  const NcclMember& member_;
  Communicator& host_;
  std::map<std::pair<int, int>, Link> links_;
};

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
  std::unique_ptr<NcclLinks> links_ = std::make_unique<NcclLinks>(member_, host_);
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
