#include <ATen/cuda/CUDAEvent.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/threads.h"
#include "parallel/comm/nccl/ipc_link.h"
#include "parallel/comm/nccl/nccl_links.h"
#include "parallel/comm/nccl/shared_page.h"

namespace pptrain::comm {
namespace {

class CudaIpcDevice final : public IpcDevice {
 public:
  cudaStream_t stream() const { return stream_.get(); }

  Memory allocate(size_t bytes, Handle& handle) override {
    constexpr size_t block = size_t{2} << 20;  // of the driver; a handle opens all of the block
    void* memory = nullptr;
    C10_CUDA_CHECK(cudaMalloc(&memory, (bytes + block - 1) / block * block));
    Memory result(memory, [](void* m) { static_cast<void>(cudaFree(m)); });
    cudaIpcMemHandle_t own;
    C10_CUDA_CHECK(cudaIpcGetMemHandle(&own, memory));
    handle = std::bit_cast<Handle>(own);
    return result;
  }
  Memory open_memory(const Handle& handle) override {
    void* memory = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenMemHandle(&memory, std::bit_cast<cudaIpcMemHandle_t>(handle),
                                        cudaIpcMemLazyEnablePeerAccess));
    return {memory, [](void* m) { static_cast<void>(cudaIpcCloseMemHandle(m)); }};
  }
  Event make_event(Handle& handle) override {
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming));
    Event result = owned(event);
    cudaIpcEventHandle_t own;
    C10_CUDA_CHECK(cudaIpcGetEventHandle(&own, event));
    handle = std::bit_cast<Handle>(own);
    return result;
  }
  Event open_event(const Handle& handle) override {
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaIpcOpenEventHandle(&event, std::bit_cast<cudaIpcEventHandle_t>(handle)));
    return owned(event);
  }
  void copy(void* to, const void* from, size_t bytes) override {
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream()));
  }
  void record(const Event& event) override { C10_CUDA_CHECK(cudaEventRecord(of(event), stream())); }
  void wait(const Event& event) override { C10_CUDA_CHECK(cudaStreamWaitEvent(stream(), of(event), 0)); }
  void synchronize() override { C10_CUDA_CHECK(cudaStreamSynchronize(stream())); }

 private:
  static Event owned(cudaEvent_t event) {
    return {event, [](void* e) { static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(e))); }};
  }
  static cudaEvent_t of(const Event& event) { return static_cast<cudaEvent_t>(event.get()); }

  const CudaStream stream_ = make_stream();
};

// One end of a link. Its thread brings one message after another on the stream, since the other rank may not
// have come to it yet.
class IpcLink final : public DeviceLink {
 public:
  IpcLink(const NcclMember& member, bool sends) : member_(member), sends_(sends) {}
  ~IpcLink() override;
  IpcLink(const IpcLink&) = delete;
  IpcLink& operator=(const IpcLink&) = delete;

  std::unique_ptr<Work> start(at::Tensor tensor, const std::string& what) override;

  // --- set-up, in this order; each when the other rank has done what is before it ---
  PageName make_page();                  // the receiver
  void open_page(const PageName& name);  // the sender
  void make_events();
  void open_events();
  void test_messages();
  void start_thread();

 private:
  struct Message {
    at::Tensor tensor;
    DeviceEvent ready;
    std::shared_ptr<SideEnd> end;
  };

  bool ended() const;
  void run();
  std::optional<Message> next();
  void transfer(void* memory, size_t bytes) {
    sends_ ? sender_->send(memory, bytes) : receiver_->receive(memory, bytes);
  }

  const NcclMember& member_;
  const bool sends_;
  const std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
  std::atomic<bool> set_up_ = false;
  const int unwinding_ = std::uncaught_exceptions();

  CudaIpcDevice device_;
  std::optional<SharedPage> page_;
  std::optional<IpcSender> sender_;
  std::optional<IpcReceiver> receiver_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Message> messages_;
  bool leaving_ = false;  // no further messages come
  std::jthread thread_;   // last: it uses all of the above
};

// In order all messages under way are moved first. After a failure nothing is waited for.
IpcLink::~IpcLink() {
  if (std::uncaught_exceptions() > unwinding_)  // then NCCL's kernels end, too, and the device comes free
    member_.watch().fail({DeviceFailure::Kind::fault, fmt::format("rank {} has failed", member_.job_rank())});
  const bool fails = member_.watch().failure().has_value();
  {
    const std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  if (fails && page_) page_->as<IpcPage>().bell.fail();
  if (!thread_.joinable()) return;
  thread_.join();
  if (!fails) static_cast<void>(cudaStreamSynchronize(device_.stream()));
}

PageName IpcLink::make_page() {
  page_.emplace(SharedPage::make<IpcPage>());
  return page_->name();
}

void IpcLink::open_page(const PageName& name) {
  page_.emplace(SharedPage::open<IpcPage>(name));
}

void IpcLink::make_events() {
  auto& page = page_->as<IpcPage>();
  const auto has_ended = [this] { return ended(); };
  if (sends_) {
    sender_.emplace(page, device_, has_ended);
  } else {
    receiver_.emplace(page, device_, has_ended);
  }
}

void IpcLink::open_events() {
  sends_ ? sender_->open_events() : receiver_->open_events();
}

// From memory of one device to memory of the other: more than there are places, the last one in new memory.
void IpcLink::test_messages() {
  constexpr size_t largest = size_t{4} << 20;
  try {
    IpcDevice::Handle unused;
    const IpcDevice::Memory own = device_.allocate(largest, unused);
    for (size_t message = 0; message <= IpcPage::places; ++message) {
      std::vector<unsigned char> expected(message < IpcPage::places ? 1000 : largest);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<unsigned char>(i * 7 + message);
      std::vector<unsigned char> received(expected.size());
      if (sends_) device_.copy(own.get(), expected.data(), expected.size());
      transfer(own.get(), expected.size());
      if (!sends_) device_.copy(received.data(), own.get(), received.size());
      device_.synchronize();
      if (!sends_ && received != expected)
        throw Error("a test message through the GPU's memory has come with other bytes");
    }
  } catch (const std::exception&) {
    page_->as<IpcPage>().bell.fail();
    throw;
  }
}

void IpcLink::start_thread() {
  set_up_ = true;
  const SignalBlock block;
  thread_ = std::jthread([this] { run(); });
}

// During the set-up also once it takes too long.
bool IpcLink::ended() const {
  if (member_.watch().failure()) return true;
  return !set_up_ && std::chrono::steady_clock::now() - made_ > member_.set_up_timeout;
}

std::unique_ptr<Work> IpcLink::start(at::Tensor tensor, const std::string& what) {
  member_.watch().check();
  const auto ready = record(member_.current_stream());
  auto end = std::make_shared<SideEnd>();
  auto work = member_.follow(device_.stream(), what, {tensor}, ready, end);
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back({.tensor = std::move(tensor), .ready = ready, .end = std::move(end)});
  }
  changed_.notify_all();
  return work;
}

void IpcLink::run() {
  c10::cuda::set_device(member_.device.index());
  const auto stream = c10::cuda::getStreamFromExternal(device_.stream(), member_.device.index());
  while (auto message = next()) {
    try {
      message->ready->block(stream);
      transfer(
          sends_ ? const_cast<void*>(message->tensor.const_data_ptr()) : message->tensor.mutable_data_ptr(),
          message->tensor.nbytes());
      message->tensor.reset();  // the work holds it, or the watch
      message->end->reach(stream);
    } catch (const LinkEnded&) {
      return;  // the watch says why, or the host's transport
    } catch (...) {
      message->end->fail(std::current_exception());
      page_->as<IpcPage>().bell.fail();
      return;
    }
  }
}

std::optional<IpcLink::Message> IpcLink::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !messages_.empty() || leaving_; });
  if (messages_.empty() || ended()) return std::nullopt;
  Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

// The steps of a link's set-up at one end, each of which goes on only if it went well at both.
class SetUp {
 public:
  SetUp(Communicator& host, int other) : host_(host), other_(other) {}

  PageName page;  // what the receiver sets reaches the sender after the step

  // False once `body` has failed here, or the other end's.
  template <typename Body>
  bool step(bool sends, Body&& body) {
    Told own;
    try {
      body();
    } catch (const c10::Error& error) {
      own.fail(error.what_without_backtrace());
    } catch (const std::exception& error) {
      own.fail(error.what());
    }
    own.page = page;
    const Told others = exchange(own);
    if (sends) page = others.page;
    trouble_ = own.failed ? own.trouble.data() : others.trouble.data();
    return !own.failed && !others.failed;
  }
  const std::string& trouble() const { return trouble_; }

 private:
  struct Told {
    bool failed = false;
    PageName page;
    std::array<char, 256> trouble{};

    void fail(std::string_view why) {
      failed = true;
      why.copy(trouble.data(), trouble.size() - 1);
    }
  };

  Told exchange(const Told& own) {
    const auto what = [] { return "the set-up of a link between GPUs"; };
    const auto row = [] { return at::empty({static_cast<int64_t>(sizeof(Told))}, at::kByte); };
    const at::Tensor told = row(), others = row();
    std::memcpy(told.mutable_data_ptr(), &own, sizeof own);
    const auto sent = host_.isend(told, other_), received = host_.irecv(others, other_);
    sent->wait(what);
    received->wait(what);
    Told result;
    std::memcpy(&result, others.const_data_ptr(), sizeof result);
    return result;
  }

  Communicator& host_;
  const int other_;
  std::string trouble_;
};

void refuse_if_nccl_is_wanted() {
  const char* value = std::getenv("PPTRAIN_GPU_LINKS");
  if (value == nullptr || *value == '\0') return;
  const bool known = std::string_view(value) == "nccl";
  throw Error(fmt::format("PPTRAIN_GPU_LINKS={}{}", value, known ? "" : ", which should be nccl or unset"));
}

}  // namespace

std::unique_ptr<DeviceLink> make_ipc_link(const NcclMember& member, Communicator& host, int sender,
                                          int receiver) {
  const bool sends = sender == member.rank;
  SetUp set_up(host, sends ? receiver : sender);
  std::unique_ptr<IpcLink> link;
  const auto make = [&] {
    refuse_if_nccl_is_wanted();
    link = std::make_unique<IpcLink>(member, sends);
    if (!sends) set_up.page = link->make_page();
  };
  const auto meet = [&] {
    if (sends) link->open_page(set_up.page);
    link->make_events();
  };
  const bool works = set_up.step(sends, make) && set_up.step(sends, meet) &&
                     set_up.step(sends, [&] { link->open_events(); }) &&
                     set_up.step(sends, [&] { link->test_messages(); });
  if (works) {
    link->start_thread();
    log_of(Subsystem::comm)
        .debug("messages {} rank {} go through memory that both processes map", sends ? "to" : "from",
               member.job_ranks[static_cast<size_t>(sends ? receiver : sender)]);
    return link;
  }
  if (sends)
    spdlog::info("messages from rank {} to rank {} go through NCCL, not through memory that they share: {}",
                 member.job_rank(), member.job_ranks[static_cast<size_t>(receiver)], set_up.trouble());
  return nullptr;
}

}  // namespace pptrain::comm
