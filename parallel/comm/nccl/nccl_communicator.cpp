#include "parallel/comm/nccl/nccl_communicator.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/cuda_handle.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/nccl/nccl_watchdog.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/rank_order_sum.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;
using CudaStream = CudaHandle<cudaStream_t, cudaStreamDestroy>;
using WatchdogPtr = std::shared_ptr<NcclWatchdog>;

// Up to here a sum gathers whole tensors: one exchange instead of two.
constexpr int64_t direct_bytes = 256 << 10;
// Scratch of a larger sum: at most about this much.
constexpr int64_t piece_bytes = 64 << 20;

// One NCCL communicator, known to the watchdog.
class Group {
 public:
  Group(WatchdogPtr watchdog, const std::string& id, int rank, int size) : watchdog_(std::move(watchdog)) {
    ncclUniqueId unique{};
    if (id.size() != sizeof(unique)) throw Error("an NCCL id of the wrong size came from another rank");
    std::memcpy(&unique, id.data(), sizeof(unique));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    check_nccl(ncclCommInitRankConfig(&comm_, size, unique, rank, &config), "ncclCommInitRankConfig");
    watchdog_->add(comm_);
  }
  ~Group() { watchdog_->remove(comm_, /*in_order=*/std::uncaught_exceptions() <= unwinding_); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  ncclComm_t get() const { return comm_; }

 private:
  WatchdogPtr watchdog_;
  ncclComm_t comm_ = nullptr;
  int unwinding_ = std::uncaught_exceptions();
};

std::string new_id() {
  ncclUniqueId unique{};
  check_nccl(ncclGetUniqueId(&unique), "ncclGetUniqueId");
  return {reinterpret_cast<const char*>(&unique), sizeof(unique)};
}

NcclEvent record(c10::cuda::CUDAStream stream) {
  auto event = std::make_shared<at::cuda::CUDAEvent>();
  event->record(stream);
  return event;
}

void make_stream(CudaStream& stream) {
  int least = 0;
  int greatest = 0;
  C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  C10_CUDA_CHECK(cudaStreamCreateWithPriority(stream.receive(), cudaStreamNonBlocking, greatest));
}

// One direction of traffic between two ranks: its own communicator and its own stream, so that no other
// traffic can stand in its way. The sender is rank 0 of the two.
struct Link {
  CudaStream handle;  // goes last
  std::unique_ptr<Group> group;
};

// What runs on a side stream until `finished`, on `tensors` (scratch included). `what` names it in messages.
class NcclWork final : public Work {
 public:
  NcclWork(WatchdogPtr watchdog, NcclEvent finished, std::vector<at::Tensor> tensors,
           std::chrono::milliseconds timeout, std::string what)
      : watchdog_(std::move(watchdog)),
        finished_(std::move(finished)),
        tensors_(std::move(tensors)),
        timeout_(timeout),
        what_(std::move(what)) {}
  // The side stream may still use the tensors.
  ~NcclWork() override {
    if (!tensors_.empty()) watchdog_->watch(finished_, std::move(tensors_), Clock::now() + timeout_, what_);
  }
  NcclWork(const NcclWork&) = delete;
  NcclWork& operator=(const NcclWork&) = delete;

  bool done() override {
    watchdog_->check();
    if (!finished_->query()) return false;
    tensors_.clear();
    return true;
  }

  // From here on the current stream is behind the side stream, so the tensors' memory may go to other uses on
  // it.
  void wait(const std::function<std::string()>& what) override {
    watchdog_->check();
    finished_->block(c10::cuda::getCurrentCUDAStream(finished_->device_index()));
    watchdog_->watch(finished_, {}, Clock::now() + timeout_,
                     what ? fmt::format("{}: {}", what_, what()) : what_);
    tensors_.clear();
  }

  // wait() blocks the current stream, never the host.
  bool wait_for(std::chrono::milliseconds /*time*/) override { return true; }

 private:
  WatchdogPtr watchdog_;
  NcclEvent finished_;
  std::vector<at::Tensor> tensors_;
  std::chrono::milliseconds timeout_;
  std::string what_;
};

class NcclCommunicator final : public Communicator {
 public:
  // `owned` is null where the caller keeps the host communicator.
  NcclCommunicator(Communicator& host, std::unique_ptr<Communicator> owned, c10::Device device,
                   WatchdogPtr watchdog, std::chrono::milliseconds timeout)
      : owned_(std::move(owned)),
        host_(host),
        device_(device),
        watchdog_(std::move(watchdog)),
        timeout_(timeout) {
    if (size() == 1) return;
    const std::string id = broadcast_string(host_, rank() == 0 ? new_id() : "", 0);
    const c10::cuda::CUDAGuard guard(device_);
    make_stream(stream_);
    group_ = std::make_unique<Group>(watchdog_, id, rank(), size());
    warm_up();
  }

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  Communicator& host() override { return host_; }
  void progress() override {
    watchdog_->check();
    host_.progress();
  }

  void connect(std::span<const std::pair<int, int>> pairs) override;
  std::unique_ptr<Work> isend(const at::Tensor& tensor, int destination) override;
  std::unique_ptr<Work> irecv(at::Tensor tensor, int source) override;
  std::unique_ptr<Communicator> split(int color, int key) override;

  void all_reduce_sum(at::Tensor tensor) override;
  void broadcast(at::Tensor tensor, int root) override;
  void all_gather(at::Tensor out, const at::Tensor& tensor) override;
  // Of the host threads; the GPUs may be behind.
  void barrier() override { host_.barrier(); }

  void abort(const std::string& message) override { host_.abort(message); }
  void set_timeout(std::chrono::milliseconds timeout) override {
    timeout_ = timeout;
    host_.set_timeout(timeout);
  }

 private:
  std::unique_ptr<Work> start_all_reduce_sum(at::Tensor tensor) override;
  std::unique_ptr<Work> start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor,
                                                 std::vector<int64_t> counts) override;
  std::unique_ptr<Work> start_all_gather(at::Tensor out, at::Tensor tensor,
                                         std::vector<int64_t> counts) override;
  std::unique_ptr<Work> start_all_to_all(at::Tensor out, std::vector<int64_t> from, at::Tensor tensor,
                                         std::vector<int64_t> to) override;

  c10::cuda::CUDAStream current() const { return c10::cuda::getCurrentCUDAStream(device_.index()); }
  template <typename Body>
  std::unique_ptr<Work> on_stream(cudaStream_t side, const std::string& what, std::vector<at::Tensor> tensors,
                                  Body&& body);
  template <typename Body>
  std::unique_ptr<Work> collective(const char* name, std::vector<at::Tensor> tensors, Body&& body);
  void check_device(const at::Tensor& tensor, const char* what) const {
    check_contiguous(tensor, what);
    if (tensor.device() != device_) {
      throw Error(fmt::format("{}: rank {} uses {}, but the tensor is on {}", what, rank(), device_.str(),
                              tensor.device().str()));
    }
  }

  void make_link(int sender, int receiver);
  Link& link(int sender, int receiver);
  std::unique_ptr<Work> start(at::Tensor tensor, int sender, int receiver);
  void warm_up();
  void synchronize(const NcclEvent& event, const char* what);
  template <typename Outgoing, typename Incoming>
  void exchange(Outgoing&& outgoing, Incoming&& incoming);
  void reduce_piece(at::Tensor flat, at::Tensor scratch);
  void gather(at::Tensor out, const at::Tensor& tensor);
  void broadcast_bytes(at::Tensor tensor, int root);

  std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  c10::Device device_;
  WatchdogPtr watchdog_;
  std::chrono::milliseconds timeout_;
  CudaStream stream_;  // of the group's collectives; goes after the group
  std::unique_ptr<Group> group_;
  std::map<std::pair<int, int>, Link> links_;
};

// --- point to point ---

void NcclCommunicator::connect(std::span<const std::pair<int, int>> pairs) {
  const c10::cuda::CUDAGuard guard(device_);
  // In the same order everywhere: of the ranks that have not come to the first pair not yet made, both come
  // to it.
  for (const auto& [sender, receiver] : pairs) {
    const int top = std::max(sender, receiver);
    if (sender == receiver || std::min(sender, receiver) < 0 || top >= size()) {
      throw Error(fmt::format("connect: {} -> {} is no pair of a group of {}", sender, receiver, size()));
    }
    if ((sender == rank() || receiver == rank()) && !links_.contains({sender, receiver}))
      make_link(sender, receiver);
  }
}

void NcclCommunicator::make_link(int sender, int receiver) {
  const bool sends = sender == rank();
  const auto options = at::TensorOptions().dtype(at::kByte);
  const at::Tensor id = at::empty({static_cast<int64_t>(sizeof(ncclUniqueId))}, options);
  if (sends) {
    const std::string text = new_id();
    std::memcpy(id.data_ptr(), text.data(), text.size());
    host_.isend(id, receiver)->wait([] { return "the set-up of an NCCL link"; });
  } else {
    host_.irecv(id, sender)->wait([] { return "the set-up of an NCCL link"; });
  }
  Link link;
  make_stream(link.handle);
  const std::string text(static_cast<const char*>(id.const_data_ptr()), static_cast<size_t>(id.numel()));
  link.group = std::make_unique<Group>(watchdog_, text, sends ? 0 : 1, 2);
  links_.emplace(std::pair(sender, receiver), std::move(link));
  // The first message makes the connection.
  const at::Tensor token = at::empty({1}, options.device(device_));
  auto work = start(token, sender, receiver);
  work->wait([] { return "the first message of an NCCL link"; });
  synchronize(record(current()), "the first message of an NCCL link");
}

Link& NcclCommunicator::link(int sender, int receiver) {
  const auto found = links_.find({sender, receiver});
  if (found == links_.end()) {
    throw Error(
        fmt::format("ranks {} -> {} of a group of {} have no NCCL link: name the pair in connect() at set-up",
                    sender, receiver, size()));
  }
  return found->second;
}

// Runs `body` on the stream `side`, behind what the current stream holds now. The work keeps `tensors`.
template <typename Body>
std::unique_ptr<Work> NcclCommunicator::on_stream(cudaStream_t side, const std::string& what,
                                                  std::vector<at::Tensor> tensors, Body&& body) {
  watchdog_->check();
  const c10::cuda::CUDAGuard guard(device_);
  const auto stream = c10::cuda::getStreamFromExternal(side, device_.index());
  at::cuda::CUDAEvent ready;
  ready.record(current());
  ready.block(stream);
  {
    const c10::cuda::CUDAStreamGuard on(stream);
    const c10::InferenceMode inference;
    body();
  }
  return std::make_unique<NcclWork>(watchdog_, record(stream), std::move(tensors), timeout_,
                                    fmt::format("rank {}, {}", rank(), what));
}

std::unique_ptr<Work> NcclCommunicator::start(at::Tensor tensor, int sender, int receiver) {
  const bool sends = sender == rank();
  check_device(tensor, sends ? "isend" : "irecv");
  const Link& way = link(sender, receiver);
  const std::string what =
      sends ? fmt::format("a message to rank {}", receiver) : fmt::format("a message from rank {}", sender);
  return on_stream(way.handle.get(), what, {tensor}, [&] {
    const size_t bytes = tensor.nbytes();
    if (sends) {
      check_nccl(ncclSend(tensor.const_data_ptr(), bytes, ncclUint8, 1, way.group->get(), current()),
                 "ncclSend");
    } else {
      check_nccl(ncclRecv(tensor.mutable_data_ptr(), bytes, ncclUint8, 0, way.group->get(), current()),
                 "ncclRecv");
    }
  });
}

std::unique_ptr<Work> NcclCommunicator::isend(const at::Tensor& tensor, int destination) {
  check_peer(destination, rank(), size(), "isend");
  if (tensor.is_cpu()) return host_.isend(tensor, destination);
  return start(tensor, rank(), destination);
}

std::unique_ptr<Work> NcclCommunicator::irecv(at::Tensor tensor, int source) {
  check_peer(source, rank(), size(), "irecv");
  if (tensor.is_cpu()) return host_.irecv(std::move(tensor), source);
  return start(std::move(tensor), source, rank());
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  auto part = host_.split(color, key);
  Communicator& host = *part;
  return std::make_unique<NcclCommunicator>(host, std::move(part), device_, watchdog_, timeout_);
}

// --- collectives: bytes move with NCCL, sums are taken here in rank order ---
//
// All of a group run on its one stream, in the order in which they are started, which is the same on all
// ranks. Scratch is allocated on the caller's stream and kept by the work, as the other tensors are.

template <typename Body>
std::unique_ptr<Work> NcclCommunicator::collective(const char* name, std::vector<at::Tensor> tensors,
                                                   Body&& body) {
  for (const at::Tensor& tensor : tensors) check_device(tensor, name);
  return on_stream(stream_.get(), name, std::move(tensors), std::forward<Body>(body));
}

// outgoing(r), incoming(r): what goes to and comes from rank r; empty tensors do not travel.
template <typename Outgoing, typename Incoming>
void NcclCommunicator::exchange(Outgoing&& outgoing, Incoming&& incoming) {
  const auto stream = current();
  check_nccl(ncclGroupStart(), "ncclGroupStart");
  ncclResult_t result = ncclSuccess;
  for (int r = 0; r < size(); ++r) {
    if (r == rank()) continue;
    const at::Tensor out = outgoing(r);
    const at::Tensor in = incoming(r);
    if (out.numel() > 0 && result == ncclSuccess) {
      result = ncclSend(out.const_data_ptr(), out.nbytes(), ncclUint8, r, group_->get(), stream);
    }
    if (in.numel() > 0 && result == ncclSuccess) {
      result = ncclRecv(in.mutable_data_ptr(), in.nbytes(), ncclUint8, r, group_->get(), stream);
    }
  }
  const ncclResult_t end = ncclGroupEnd();
  check_nccl(result, "an exchange of all ranks");
  check_nccl(end, "ncclGroupEnd");
}

void NcclCommunicator::gather(at::Tensor out, const at::Tensor& tensor) {
  check_nccl(ncclAllGather(tensor.const_data_ptr(), out.mutable_data_ptr(), tensor.nbytes(), ncclUint8,
                           group_->get(), current()),
             "ncclAllGather");
}

// Reduce-scatter by exchange of chunks, then all-gather: each rank sends and receives 2 (size - 1) / size of
// the tensor.
void NcclCommunicator::reduce_piece(at::Tensor flat, at::Tensor scratch) {
  const int64_t n = flat.numel();
  const auto chunk = [&](int r) {
    const int64_t begin = n * r / size();
    return flat.narrow(0, begin, n * (r + 1) / size() - begin);
  };
  const at::Tensor own = chunk(rank());
  const at::Tensor others = scratch.narrow(0, 0, size() * own.numel()).view({size(), own.numel()});
  exchange(chunk, [&](int r) { return others.select(0, r); });
  sum_in_rank_order(own, others, rank(), size());
  exchange([&](int) { return own; }, chunk);
}

std::unique_ptr<Work> NcclCommunicator::start_all_reduce_sum(at::Tensor tensor) {
  if (tensor.is_cpu()) return host_.iall_reduce_sum(std::move(tensor));
  const c10::cuda::CUDAGuard guard(device_);
  const int64_t n = tensor.numel();
  if (static_cast<int64_t>(tensor.nbytes()) <= direct_bytes) {
    const at::Tensor others = at::empty({size(), n}, tensor.options());
    return collective("all_reduce_sum", {tensor, others}, [&] {
      gather(others, tensor);
      sum_in_rank_order(tensor, others, rank(), size());
    });
  }
  const int64_t piece = std::max<int64_t>(piece_bytes / static_cast<int64_t>(tensor.element_size()), size());
  const at::Tensor scratch =
      at::empty({(std::min(piece, n) + size() - 1) / size() * size()}, tensor.options());
  return collective("all_reduce_sum", {tensor, scratch}, [&] {
    for (int64_t begin = 0; begin < n; begin += piece) {
      reduce_piece(tensor.narrow(0, begin, std::min(piece, n - begin)), scratch);
    }
  });
}

std::unique_ptr<Work> NcclCommunicator::start_reduce_scatter_sum(at::Tensor out, at::Tensor tensor,
                                                                 std::vector<int64_t> counts) {
  if (tensor.is_cpu()) return host_.ireduce_scatter_sum(std::move(out), tensor, counts);
  const c10::cuda::CUDAGuard guard(device_);
  const int64_t mine = counts[rank()];
  const Windows windows = make_windows(counts, static_cast<int64_t>(tensor.element_size()), piece_bytes);
  const at::Tensor scratch = at::empty({size() * std::min(windows.length, mine)}, tensor.options());
  return collective("reduce_scatter_sum", {out, tensor, scratch}, [&] {
    const Parts parts(tensor, counts);
    const Parts outs(out, std::span(&mine, 1));
    copy_own_part(out, parts[rank()]);
    for (int64_t w = 0; w < windows.count; ++w) {
      const at::Tensor own = outs.window(0, w, windows.length);
      const at::Tensor others = scratch.narrow(0, 0, size() * own.numel()).view({size(), own.numel()});
      exchange([&](int r) { return parts.window(r, w, windows.length); },
               [&](int r) { return others.select(0, r); });
      if (own.numel() > 0) sum_in_rank_order(own, others, rank(), size());
    }
  });
}

std::unique_ptr<Work> NcclCommunicator::start_all_gather(at::Tensor out, at::Tensor tensor,
                                                         std::vector<int64_t> counts) {
  if (tensor.is_cpu()) return host_.iall_gather(std::move(out), tensor, counts);
  return collective("all_gather", {out, tensor}, [&] {
    if (std::ranges::adjacent_find(counts, std::ranges::not_equal_to()) == counts.end()) {
      return gather(out, tensor);
    }
    const Parts parts(out, counts);
    copy_own_part(parts[rank()], tensor);
    exchange([&](int) { return tensor; }, [&](int r) { return parts[r]; });
  });
}

std::unique_ptr<Work> NcclCommunicator::start_all_to_all(at::Tensor out, std::vector<int64_t> from,
                                                         at::Tensor tensor, std::vector<int64_t> to) {
  if (tensor.is_cpu()) return host_.iall_to_all(std::move(out), from, tensor, to);
  return collective("all_to_all", {out, tensor}, [&] {
    const Parts incoming(out, from);
    const Parts outgoing(tensor, to);
    copy_own_part(incoming[rank()], outgoing[rank()]);
    exchange([&](int r) { return outgoing[r]; }, [&](int r) { return incoming[r]; });
  });
}

void NcclCommunicator::all_reduce_sum(at::Tensor tensor) {
  check_contiguous(tensor, "all_reduce_sum");
  if (tensor.is_cpu()) return host_.all_reduce_sum(std::move(tensor));
  iall_reduce_sum(std::move(tensor))->wait();
}

void NcclCommunicator::broadcast(at::Tensor tensor, int root) {
  check_contiguous(tensor, "broadcast");
  if (tensor.is_cpu()) return host_.broadcast(std::move(tensor), root);
  check_root(root, size());
  if (size() == 1 || tensor.numel() == 0) return;
  collective("broadcast", {tensor}, [&] { broadcast_bytes(tensor, root); })->wait();
}

void NcclCommunicator::broadcast_bytes(at::Tensor tensor, int root) {
  check_nccl(ncclBroadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8,
                           root, group_->get(), current()),
             "ncclBroadcast");
}

void NcclCommunicator::all_gather(at::Tensor out, const at::Tensor& tensor) {
  check_contiguous(tensor, "all_gather");
  if (tensor.is_cpu()) return host_.all_gather(std::move(out), tensor);
  check_contiguous(out, "all_gather");
  check_rows(out, tensor, size());
  iall_gather(std::move(out), tensor)->wait();
}

// --- set-up ---

// Every kind of collective once, so that NCCL makes its connections now.
void NcclCommunicator::warm_up() {
  const c10::InferenceMode inference;
  const at::Tensor rows = at::empty({size(), 1}, at::TensorOptions().dtype(at::kByte).device(device_));
  const at::Tensor tokens = at::empty_like(rows);
  const auto incoming = [&](int r) { return rows.select(0, r); };
  const auto outgoing = [&](int r) { return tokens.select(0, r); };
  const auto work = collective("the first collectives of an NCCL group", {rows, tokens}, [&] {
    exchange(outgoing, incoming);
    gather(rows, outgoing(rank()));
    broadcast_bytes(rows, 0);
  });
  work->wait();
  synchronize(record(current()), "the first collectives of an NCCL group");
}

// Waits on the host, with the watchdog's eye on the time.
void NcclCommunicator::synchronize(const NcclEvent& event, const char* what) {
  watchdog_->watch(event, {}, Clock::now() + timeout_, fmt::format("rank {}, {}", rank(), what));
  while (!event->query()) {
    watchdog_->check();
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

// Whether this process takes part in a test of several processes on one GPU (scripts/gpu): never set for
// work, since kernels that wait for each other then depend on the driver's time slices. NCCL itself takes
// such ranks for those of different hosts, over sockets, only where each process has an NCCL_HOSTID of its
// own.
bool may_share_gpu() {
  const char* value = std::getenv("PPTRAIN_NCCL_SHARED_GPU");
  return value != nullptr && std::string_view(value) == "1";
}

// NCCL's own message for two ranks on one GPU names neither.
void check_devices_differ(Communicator& host, c10::Device device) {
  cudaDeviceProp properties{};
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device.index()));
  constexpr int64_t id_bytes = sizeof(properties.uuid);
  const at::Tensor mine = at::empty({id_bytes + 1}, at::kByte);
  std::memcpy(mine.data_ptr(), &properties.uuid, id_bytes);
  mine.mutable_data_ptr<uint8_t>()[id_bytes] = may_share_gpu() ? 1 : 0;
  const at::Tensor all = at::empty({host.size(), id_bytes + 1}, at::kByte);
  host.all_gather(all, mine);
  const auto row = [&](int r) { return static_cast<const char*>(all.const_data_ptr()) + r * (id_bytes + 1); };
  const auto id = [&](int r) { return std::string(row(r), static_cast<size_t>(id_bytes)); };
  const auto shares = [&](int r) { return row(r)[id_bytes] == 1; };
  std::map<std::string, int> owners;
  for (int r = 0; r < host.size(); ++r) {
    const auto [owner, is_new] = owners.emplace(id(r), r);
    if (is_new || (shares(r) && shares(owner->second))) continue;  // all ranks see the same, and decide alike
    throw UsageError(
        fmt::format("ranks {} and {} share one GPU ({}), which NCCL does not support: start at most one "
                    "process per GPU, or start pptrain without a launcher, where ranks are threads and may "
                    "share a GPU",
                    owner->second, r, properties.name));
  }
}

}  // namespace

std::string nccl_version() {
  int version = 0;
  ncclGetVersion(&version);
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::unique_ptr<Communicator> make_nccl(Communicator& host, c10::Device device) {
  if (!device.is_cuda()) throw Error(fmt::format("NCCL carries CUDA tensors; {} is no GPU", device.str()));
  if (!device.has_index()) device = c10::Device(at::kCUDA, c10::cuda::current_device());
  const c10::cuda::CUDAGuard guard(device);
  check_devices_differ(host, device);
  auto watchdog = std::make_shared<NcclWatchdog>(device.index());
  return std::make_unique<NcclCommunicator>(host, nullptr, device, std::move(watchdog), default_timeout);
}

}  // namespace pptrain::comm
