// Links through memory of a device, with a fake one whose streams fall behind.
#include "parallel/comm/nccl/ipc_link.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/support/catch.h"
#include "test/support/seed.h"

namespace pptrain::comm {
namespace {

using namespace std::chrono_literals;
using pptrain::test::contains_text;

// What the devices of both ends share. An event counts the calls that record it, and those that the device
// has come to.
struct FakeHost {
  struct Event {
    int64_t asked = 0, passed = 0;
  };
  struct Block {
    std::vector<char> bytes;
    bool allocated = true, opened = false;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Event> events;
  std::deque<Block> blocks;
  std::vector<std::string> faults;  // what a GPU would not survive

  bool holds(const Block& block, const void* address) const {
    return address >= block.bytes.data() && address < block.bytes.data() + block.bytes.size();
  }
};

template <typename Number>
IpcDevice::Handle handle_of(Number number) {
  IpcDevice::Handle handle{};
  std::memcpy(handle.data(), &number, sizeof number);
  return handle;
}

size_t number_of(const IpcDevice::Handle& handle) {
  size_t number = 0;
  std::memcpy(&number, handle.data(), sizeof number);
  return number;
}

// Its stream is a thread, which is in no hurry.
class FakeDevice final : public IpcDevice {
 public:
  FakeDevice(FakeHost& host, uint32_t seed) : host_(host), random_(seed) {
    thread_ = std::jthread([this] { run(); });
  }
  ~FakeDevice() override {
    put({});
    thread_.join();
  }
  FakeDevice(const FakeDevice&) = delete;
  FakeDevice& operator=(const FakeDevice&) = delete;

  Memory allocate(size_t bytes, Handle& handle) override {
    const std::lock_guard lock(host_.mutex);
    handle = handle_of(host_.blocks.size());
    FakeHost::Block& block = host_.blocks.emplace_back(FakeHost::Block{.bytes = std::vector<char>(bytes)});
    return {block.bytes.data(), [this, &block](void*) {
              const std::lock_guard inner(host_.mutex);
              if (block.opened) host_.faults.emplace_back("memory was freed that the sender has open");
              block.allocated = false;
            }};
  }
  Memory open_memory(const Handle& handle) override {
    const std::lock_guard lock(host_.mutex);
    FakeHost::Block& block = host_.blocks.at(number_of(handle));
    block.opened = true;
    return {block.bytes.data(), [this, &block](void*) {
              const std::lock_guard inner(host_.mutex);
              block.opened = false;
            }};
  }
  Event make_event(Handle& handle) override {
    const std::lock_guard lock(host_.mutex);
    handle = handle_of(host_.events.size());
    return {&host_.events.emplace_back(), [](void*) {}};
  }
  Event open_event(const Handle& handle) override {
    const std::lock_guard lock(host_.mutex);
    return {&host_.events.at(number_of(handle)), [](void*) {}};
  }
  void copy(void* to, const void* from, size_t bytes) override {
    put([this, to, from, bytes] {
      const std::lock_guard lock(host_.mutex);
      for (const FakeHost::Block& block : host_.blocks) {
        if (host_.holds(block, to) && !block.opened) host_.faults.emplace_back("a copy to closed memory");
        if (host_.holds(block, from) && !block.allocated) host_.faults.emplace_back("a copy of freed memory");
      }
      std::memcpy(to, from, bytes);
    });
  }
  void record(const Event& event) override {
    auto& e = *static_cast<FakeHost::Event*>(event.get());
    const std::lock_guard lock(host_.mutex);
    const int64_t number = ++e.asked;
    put([this, &e, number] {
      const std::lock_guard inner(host_.mutex);
      e.passed = number;
      host_.changed.notify_all();
    });
  }
  void wait(const Event& event) override {
    auto& e = *static_cast<FakeHost::Event*>(event.get());
    const std::lock_guard lock(host_.mutex);
    put([this, &e, number = e.asked] {
      std::unique_lock inner(host_.mutex);
      host_.changed.wait(inner, [&] { return e.passed >= number; });
    });
  }
  void synchronize() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return work_.empty(); });
  }

 private:
  void put(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }
  // An empty function ends it.
  void run() {
    for (;;) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !work_.empty(); });
      const std::function<void()> work = work_.front();
      lock.unlock();
      if (!work) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 400));
      work();
      lock.lock();
      work_.pop_front();
      changed_.notify_all();
    }
  }

  FakeHost& host_;
  std::minstd_rand random_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;  // the first one is being done
  std::jthread thread_;
};

// Both ends in one process, each with its own view of the page. Its streams end with it, after their copies.
struct Link {
  FakeHost host;
  SharedPage receivers = SharedPage::make<IpcPage>();
  SharedPage senders = SharedPage::open<IpcPage>(receivers.name());
  FakeDevice sending{host, pptrain::test::seed(1)}, receiving{host, pptrain::test::seed(2)};
  std::atomic<bool> ended = false;
  std::unique_ptr<IpcSender> sender =
      std::make_unique<IpcSender>(senders.as<IpcPage>(), sending, [this] { return ended.load(); });
  std::unique_ptr<IpcReceiver> receiver =
      std::make_unique<IpcReceiver>(receivers.as<IpcPage>(), receiving, [this] { return ended.load(); });

  Link() {
    sender->open_events();
    receiver->open_events();
  }
};

std::vector<char> content_of(size_t message, size_t bytes) {
  std::vector<char> result(bytes);
  for (size_t i = 0; i < bytes; ++i) result[i] = static_cast<char>(i * 31 + message * 7 + 1);
  return result;
}

// Each message in memory of its own, since the streams are behind.
std::vector<std::vector<char>> contents(const std::vector<size_t>& sizes) {
  std::vector<std::vector<char>> result;
  for (size_t i = 0; i < sizes.size(); ++i) result.push_back(content_of(i, sizes[i]));
  return result;
}

TEST_CASE("messages of any size come over a link in order, whichever stream is behind") {
  const std::vector<size_t> sizes = {100,    5000, 5000, 0,      60,     5000, 20'000,
                                     20'000, 1,    7,    20'000, 70'000, 512,  513};
  const std::vector<std::vector<char>> sent = contents(sizes);
  std::vector<std::vector<char>> received;
  for (const size_t size : sizes) received.emplace_back(size);
  Link link;
  std::jthread other([&] {
    for (const auto& message : sent) link.sender->send(message.data(), message.size());
  });
  for (auto& message : received) link.receiver->receive(message.data(), message.size());
  link.receiving.synchronize();
  other.join();
  CHECK((received == sent));
  link.sending.synchronize();
  std::jthread end([&] { link.sender.reset(); });
  link.receiver.reset();
  end.join();
  CHECK(link.host.faults == std::vector<std::string>{});
  CHECK(link.host.blocks.size() == 4);  // one for each new largest size
}

TEST_CASE("a sender runs ahead of its receiver by as many messages as there are places") {
  const std::vector<char> message = content_of(0, 100);
  std::vector<char> received(100);
  Link link;
  std::jthread first([&] { link.sender->send(message.data(), 100); });  // waits for memory
  link.receiver->receive(received.data(), 100);
  first.join();
  for (int64_t i = 0; i < IpcPage::places; ++i) link.sender->send(message.data(), 100);
  link.ended = true;
  CHECK_THROWS_AS(link.sender->send(message.data(), 100), LinkEnded);
}

TEST_CASE("a receiver that expects another size says both") {
  const std::vector<char> message(100);
  std::vector<char> received(99);
  Link link;
  bool ended = false;
  std::jthread other([&] {
    try {
      link.sender->send(message.data(), 100);
    } catch (const LinkEnded&) {
      ended = true;
    }
  });
  CHECK_THROWS_WITH(link.receiver->receive(received.data(), 99),
                    contains_text("has 100 bytes, but its receiver expects 99"));
  link.receivers.as<IpcPage>().bell.fail();
  other.join();
  CHECK(ended);
}

TEST_CASE("neither end goes before the other has ended its use of it") {
  std::vector<char> message(100), received(100);
  Link link;
  std::jthread other([&] {
    link.sender->send(message.data(), 100);
    link.sending.synchronize();
    std::this_thread::sleep_for(100ms);
    link.sender.reset();
  });
  link.receiver->receive(received.data(), 100);
  link.receiving.synchronize();
  link.receiver.reset();
  CHECK(link.host.faults == std::vector<std::string>{});
}

TEST_CASE("a shared page is another process's too, and no other page is taken for it") {
  struct Content {
    PageBell bell;
    std::atomic<int> value;
  };
  const SharedPage page = SharedPage::make<Content>();
  const auto never = [] { return false; };
  const pid_t child = fork();
  if (child == 0) {
    const SharedPage theirs = SharedPage::open<Content>(page.name());
    theirs.as<Content>().value = 7;
    theirs.as<Content>().bell.ring();
    _exit(0);
  }
  page.as<Content>().bell.await([&] { return page.as<Content>().value == 7; }, never);
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(status == 0);

  PageName name = page.name();
  ++name.key;
  CHECK_THROWS_WITH(SharedPage::open<Content>(name), contains_text("is not to be reached"));
  CHECK_THROWS_WITH(SharedPage::open<PageBell>(page.name()), contains_text("is not to be reached"));
  name = page.name();
  name.descriptor = 100'000;
  CHECK_THROWS_WITH(SharedPage::open<Content>(name), contains_text("No such file"));

  page.as<Content>().bell.fail();
  CHECK_THROWS_AS(page.as<Content>().bell.await(never, never), LinkEnded);
}

}  // namespace
}  // namespace pptrain::comm
