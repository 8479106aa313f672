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
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/cuda_handle.h"
#include "parallel/comm/collectives.h"
#include "parallel/comm/nccl/nccl_group.h"
#include "parallel/comm/operands.h"
#include "parallel/comm/rank_order_sum.h"

namespace pptrain::comm {
namespace {

using CudaStream = CudaHandle<cudaStream_t, cudaStreamDestroy>;
using NcclEvent = std::shared_ptr<at::cuda::CUDAEvent>;

// Up to here a sum gathers whole tensors: one exchange instead of two.
constexpr int64_t direct_bytes = 256 << 10;
// Scratch of a larger sum: at most about this much.
constexpr int64_t piece_bytes = 64 << 20;
// Thread blocks of a link's kernel, one an SM: what a receive that was posted ahead holds while it waits (of
// 132 on an H100, of 108 on an A100). NCCL's own choice takes up to 32, of each of the links that wait. If a
// block moves 20 GB/s, two take 0.8 ms for the 32 MiB of 4096 tokens of 4096 bf16 values; the stage's
// forward, say eight blocks of 200M parameters, takes 13 TFLOP, 26 ms at 500 TFLOP/s, and goes on meanwhile.
// (Arithmetic, not measured.)
constexpr int link_ctas = 2;

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

// The job's rank of each rank of `host`, of which this one's is `mine`. Collective.
std::vector<int> ranks_of_job(Communicator& host, int mine) {
  const at::Tensor own = at::empty({1}, at::kInt);
  *own.mutable_data_ptr<int>() = mine;
  const at::Tensor all = at::empty({host.size(), 1}, at::kInt);
  host.all_gather(all, own);
  const int* begin = all.const_data_ptr<int>();
  return {begin, begin + host.size()};
}

// "ranks 0, 4"
std::string name_ranks(std::span<const int> ranks) {
  constexpr size_t shown = 8;
  if (ranks.size() <= shown) return fmt::format("ranks {}", fmt::join(ranks, ", "));
  return fmt::format("{} ranks from {} to {}", ranks.size(), ranks.front(), ranks.back());
}

// One direction of traffic between two ranks: its own communicator and its own stream, so that no other
// traffic can stand in its way. The sender is rank 0 of the two.
struct Link {
  CudaStream handle;  // goes last
  std::unique_ptr<NcclGroup> group;
};

// What runs on a side stream until `finished`, on `tensors` (scratch included); `ticket` is the watch's.
class NcclWork final : public Work {
 public:
  NcclWork(WatchdogPtr watchdog, NcclEvent finished, DeviceWatch::Ticket ticket,
           std::vector<at::Tensor> tensors)
      : watchdog_(std::move(watchdog)),
        finished_(std::move(finished)),
        ticket_(std::move(ticket)),
        tensors_(std::move(tensors)) {}
  // The side stream may still use the tensors.
  ~NcclWork() override {
    if (!tensors_.empty()) watchdog_->watch().keep(ticket_, std::move(tensors_));
  }
  NcclWork(const NcclWork&) = delete;
  NcclWork& operator=(const NcclWork&) = delete;

  bool done() override {
    watchdog_->watch().check();
    if (!finished_->query()) return false;
    tensors_.clear();
    return true;
  }

  // From here on the current stream is behind the side stream, so the tensors' memory may go to other uses on
  // it.
  void wait(const std::function<std::string()>& what) override {
    watchdog_->watch().check();
    finished_->block(c10::cuda::getCurrentCUDAStream(finished_->device_index()));
    if (what) watchdog_->watch().explain(ticket_, what());
    tensors_.clear();
  }

  // wait() blocks the current stream, never the host.
  bool wait_for(std::chrono::milliseconds /*time*/) override { return true; }

 private:
  WatchdogPtr watchdog_;
  NcclEvent finished_;
  DeviceWatch::Ticket ticket_;
  std::vector<at::Tensor> tensors_;
};

class NcclCommunicator final : public Communicator {
 public:
  // `owned` is null where the caller keeps the host communicator: that of the whole job. `job_rank`: this
  // rank's there.
  NcclCommunicator(Communicator& host, std::unique_ptr<Communicator> owned, int job_rank, c10::Device device,
                   WatchdogPtr watchdog, std::chrono::milliseconds timeout)
      : owned_(std::move(owned)),
        host_(host),
        job_ranks_(ranks_of_job(host, job_rank)),
        group_name_(name_ranks(job_ranks_)),
        device_(device),
        watchdog_(std::move(watchdog)),
        timeout_(timeout) {
    if (size() == 1) return;
    const std::string id = broadcast_string(host_, rank() == 0 ? new_nccl_id() : "", 0);
    const c10::cuda::CUDAGuard guard(device_);
    make_stream(stream_);
    group_ = make_group(id, rank(), job_ranks_, /*max_ctas=*/0);
    warm_up();
  }
  // The end of a link may wait for the other rank's: so in the same order everywhere. The job's communicator
  // stops the watchdog, which asks the host's, before that goes.
  ~NcclCommunicator() override {
    while (!links_.empty()) links_.erase(links_.begin());
    group_.reset();
    if (!owned_) watchdog_->stop();
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  // Once NCCL has failed, what came from the GPU means nothing: no rank goes on with it.
  Communicator& host() override {
    watch().throw_if_failed();
    return host_;
  }
  void progress() override {
    watch().check();
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
  void barrier() override { host().barrier(); }

  void abort(const std::string& message) override { host_.abort(message); }
  std::string failure() const override { return host_.failure(); }
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

  DeviceWatch& watch() const { return watchdog_->watch(); }
  int job_rank() const { return job_ranks_[rank()]; }
  std::unique_ptr<NcclGroup> make_group(const std::string& id, int nccl_rank, std::span<const int> job_ranks,
                                        int max_ctas) const {
    return std::make_unique<NcclGroup>(
        watchdog_, id, nccl_rank, static_cast<int>(job_ranks.size()),
        NcclGroup::Options{.job_rank = job_rank(),
                           .name = "the NCCL group of " + name_ranks(job_ranks),
                           .timeout = timeout_,
                           .max_ctas = max_ctas});
  }
  c10::cuda::CUDAStream current() const { return c10::cuda::getCurrentCUDAStream(device_.index()); }
  template <typename Body>
  std::unique_ptr<Work> on_stream(cudaStream_t side, const std::string& what, std::vector<at::Tensor> tensors,
                                  Body&& body);
  template <typename Body>
  std::unique_ptr<Work> collective(const char* name, std::vector<at::Tensor> tensors, Body&& body);
  void check_device(const at::Tensor& tensor, const char* what) const {
    check_contiguous(tensor, what);
    if (tensor.device() != device_) {
      throw Error(fmt::format("{}: rank {} uses {}, but the tensor is on {}", what, job_rank(), device_.str(),
                              tensor.device().str()));
    }
  }

  void make_link(int sender, int receiver);
  Link& link(int sender, int receiver);
  std::unique_ptr<Work> start(at::Tensor tensor, int sender, int receiver);
  void warm_up();
  void synchronize();
  template <typename Outgoing, typename Incoming>
  void exchange(Outgoing&& outgoing, Incoming&& incoming);
  void reduce_piece(at::Tensor flat, at::Tensor scratch);
  void gather(at::Tensor out, const at::Tensor& tensor);
  void broadcast_bytes(at::Tensor tensor, int root);

  std::unique_ptr<Communicator> owned_;
  Communicator& host_;
  std::vector<int> job_ranks_;  // of the group's ranks
  std::string group_name_;
  c10::Device device_;
  WatchdogPtr watchdog_;
  std::chrono::milliseconds timeout_;
  CudaStream stream_;  // of the group's collectives; goes after the group
  std::unique_ptr<NcclGroup> group_;
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
    const std::string text = new_nccl_id();
    std::memcpy(id.data_ptr(), text.data(), text.size());
    host_.isend(id, receiver)->wait([] { return "the set-up of an NCCL link"; });
  } else {
    host_.irecv(id, sender)->wait([] { return "the set-up of an NCCL link"; });
  }
  Link link;
  make_stream(link.handle);
  const std::string text(static_cast<const char*>(id.const_data_ptr()), static_cast<size_t>(id.numel()));
  const std::array<int, 2> pair{job_ranks_[sender], job_ranks_[receiver]};
  link.group = make_group(text, sends ? 0 : 1, pair, link_ctas);
  links_.emplace(std::pair(sender, receiver), std::move(link));
  // The first message makes the connection.
  const at::Tensor token = at::empty({1}, options.device(device_));
  auto work = start(token, sender, receiver);
  work->wait([] { return "the first message of an NCCL link"; });
  synchronize();
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
  watch().check();
  const c10::cuda::CUDAGuard guard(device_);
  const auto stream = c10::cuda::getStreamFromExternal(side, device_.index());
  const NcclEvent ready = record(current());
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
                              .timeout = timeout_,
                              .rank = job_rank(),
                              .description = what});
  return std::make_unique<NcclWork>(watchdog_, finished, std::move(ticket), std::move(tensors));
}

std::unique_ptr<Work> NcclCommunicator::start(at::Tensor tensor, int sender, int receiver) {
  const bool sends = sender == rank();
  check_device(tensor, sends ? "isend" : "irecv");
  const Link& way = link(sender, receiver);
  const std::string what = sends ? fmt::format("its message to be taken by rank {}", job_ranks_[receiver])
                                 : fmt::format("a message from rank {}", job_ranks_[sender]);
  return on_stream(way.handle.get(), what, {tensor}, [&] {
    const size_t bytes = tensor.nbytes();
    way.group->enqueue(what, timeout_, [&](ncclComm_t comm) {
      return sends ? ncclSend(tensor.const_data_ptr(), bytes, ncclUint8, 1, comm, current())
                   : ncclRecv(tensor.mutable_data_ptr(), bytes, ncclUint8, 0, comm, current());
    });
  });
}

std::unique_ptr<Work> NcclCommunicator::isend(const at::Tensor& tensor, int destination) {
  check_peer(destination, rank(), size(), "isend");
  if (tensor.is_cpu()) return host().isend(tensor, destination);
  return start(tensor, rank(), destination);
}

std::unique_ptr<Work> NcclCommunicator::irecv(at::Tensor tensor, int source) {
  check_peer(source, rank(), size(), "irecv");
  if (tensor.is_cpu()) return host().irecv(std::move(tensor), source);
  return start(std::move(tensor), source, rank());
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key) {
  auto part = host_.split(color, key);
  Communicator& host = *part;
  return std::make_unique<NcclCommunicator>(host, std::move(part), job_rank(), device_, watchdog_, timeout_);
}

// --- collectives: bytes move with NCCL, sums are taken here in rank order ---
//
// All of a group run on its one stream, in the order in which they are started, which is the same on all
// ranks. Scratch is allocated on the caller's stream and kept by the work, as the other tensors are.

template <typename Body>
std::unique_ptr<Work> NcclCommunicator::collective(const char* name, std::vector<at::Tensor> tensors,
                                                   Body&& body) {
  for (const at::Tensor& tensor : tensors) check_device(tensor, name);
  return on_stream(stream_.get(), fmt::format("{} of {}", name, group_name_), std::move(tensors),
                   std::forward<Body>(body));
}

// outgoing(r), incoming(r): what goes to and comes from rank r; empty tensors do not travel.
template <typename Outgoing, typename Incoming>
void NcclCommunicator::exchange(Outgoing&& outgoing, Incoming&& incoming) {
  const auto stream = current();
  const auto accepted = [](ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; };
  group_->enqueue("an exchange of all ranks", timeout_, [&](ncclComm_t comm) {
    ncclResult_t result = ncclGroupStart();
    if (result != ncclSuccess) return result;
    for (int r = 0; r < size(); ++r) {
      if (r == rank()) continue;
      const at::Tensor out = outgoing(r);
      const at::Tensor in = incoming(r);
      if (out.numel() > 0 && accepted(result)) {
        result = ncclSend(out.const_data_ptr(), out.nbytes(), ncclUint8, r, comm, stream);
      }
      if (in.numel() > 0 && accepted(result)) {
        result = ncclRecv(in.mutable_data_ptr(), in.nbytes(), ncclUint8, r, comm, stream);
      }
    }
    const ncclResult_t end = ncclGroupEnd();
    return accepted(result) ? end : result;
  });
}

void NcclCommunicator::gather(at::Tensor out, const at::Tensor& tensor) {
  group_->enqueue("all_gather", timeout_, [&](ncclComm_t comm) {
    return ncclAllGather(tensor.const_data_ptr(), out.mutable_data_ptr(), tensor.nbytes(), ncclUint8, comm,
                         current());
  });
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
  if (tensor.is_cpu()) return host().iall_reduce_sum(std::move(tensor));
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
  if (tensor.is_cpu()) return host().ireduce_scatter_sum(std::move(out), tensor, counts);
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
  if (tensor.is_cpu()) return host().iall_gather(std::move(out), tensor, counts);
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
  if (tensor.is_cpu()) return host().iall_to_all(std::move(out), from, tensor, to);
  return collective("all_to_all", {out, tensor}, [&] {
    const Parts incoming(out, from);
    const Parts outgoing(tensor, to);
    copy_own_part(incoming[rank()], outgoing[rank()]);
    exchange([&](int r) { return outgoing[r]; }, [&](int r) { return incoming[r]; });
  });
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
  collective("broadcast", {tensor}, [&] { broadcast_bytes(tensor, root); })->wait();
}

void NcclCommunicator::broadcast_bytes(at::Tensor tensor, int root) {
  group_->enqueue("broadcast", timeout_, [&](ncclComm_t comm) {
    return ncclBroadcast(tensor.const_data_ptr(), tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, root,
                         comm, current());
  });
}

void NcclCommunicator::all_gather(at::Tensor out, const at::Tensor& tensor) {
  check_contiguous(tensor, "all_gather");
  if (tensor.is_cpu()) return host().all_gather(std::move(out), tensor);
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
  const auto work = collective("the first exchange", {rows, tokens}, [&] {
    exchange(outgoing, incoming);
    gather(rows, outgoing(rank()));
    broadcast_bytes(rows, 0);
  });
  work->wait();
  synchronize();
}

// Waits on the host for the current stream; the watch's eye is on what it waits for.
void NcclCommunicator::synchronize() {
  const NcclEvent event = record(current());
  while (!event->query()) {
    watch().check();
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

std::unique_ptr<Communicator> make_nccl(Communicator& host, c10::Device device, NcclOptions options) {
  if (!device.is_cuda()) throw Error(fmt::format("NCCL carries CUDA tensors; {} is no GPU", device.str()));
  if (!device.has_index()) device = c10::Device(at::kCUDA, c10::cuda::current_device());
  const c10::cuda::CUDAGuard guard(device);
  check_devices_differ(host, device);
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
