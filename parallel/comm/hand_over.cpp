#include "parallel/comm/hand_over.h"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstddef>
#include <exception>
#include <utility>

#include "core/base/error.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace pptrain::comm {
namespace {

// Ends a computation after the other one has failed.
struct Abandoned final : Error {
  Abandoned() : Error("the computation that it took turns with has failed") {}
};

// Memory that is allocated page by page as it is used; the lowest page cannot be accessed.
class Stack {
 public:
  Stack() : memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, -1, 0)) {
    if (memory_ == MAP_FAILED) throw Error("no memory for the stack of the second half of a pair");
    mprotect(memory_, static_cast<size_t>(getpagesize()), PROT_NONE);
  }
  ~Stack() {
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(memory_, bytes);  // of the frame that is left for good
#endif
    munmap(memory_, bytes);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  void* begin() const {
    return memory_;
  }
  static constexpr size_t bytes = size_t{8} << 20;  // as threads have

 private:
  static constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
  void* memory_;
};

// A stack on which a computation stands, and what sanitizers must know of it.
struct Place {
  ucontext_t context{};
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* fake_stack = nullptr;
  void* fiber = nullptr;
};

class Turns;
thread_local Turns* running = nullptr;

class Turns {
 public:
  Turns(const std::function<void()>& second, const std::function<void(bool second)>& turn)
      : second_(second), turn_(turn) {
    Place& place = places_[1];
    place.bottom = stack_.begin();
    place.bytes = Stack::bytes;
    getcontext(&place.context);
    place.context.uc_stack.ss_sp = stack_.begin();
    place.context.uc_stack.ss_size = Stack::bytes;
    makecontext(&place.context, enter_second, 0);
#if defined(__SANITIZE_THREAD__)
    places_[0].fiber = __tsan_get_current_fiber();
    place.fiber = __tsan_create_fiber(0);
#endif
  }
  ~Turns() {
    running = outer_;
#if defined(__SANITIZE_THREAD__)
    __tsan_destroy_fiber(places_[1].fiber);
#endif
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  void run(const std::function<void()>& first) {
    running = this;
    attempt(first);
    ended_[0] = true;
    if (!ended_[1] && (begun_ || !error_)) go_to(1);
    if (error_) std::rethrow_exception(error_);
  }

  void hand_over() {
    const int other = 1 - at_;
    if (ended_[other] || std::uncaught_exceptions() > 0) return;
    go_to(other);
    if (error_) throw Abandoned();
    turn_(at_ == 1);
  }

 private:
  // Neither computation is in a catch block when it hands over, so the thread's exception state of the
  // runtime fits both.
  void attempt(const std::function<void()>& computation) {
    try {
      computation();
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
  }

  static void enter_second() {
    Turns& turns = *running;
    turns.arrive();
    turns.begun_ = true;
    turns.attempt([&] {
      turns.turn_(true);
      turns.second_();
    });
    turns.ended_[1] = true;
    turns.go_to(0);
  }

  // Returns when the computation that calls it goes on.
  void go_to(int to) {
    const int from = std::exchange(at_, to);
    [[maybe_unused]] const bool for_good = from == 1 && ended_[1];
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &places_[from].fake_stack, places_[to].bottom,
                                   places_[to].bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(places_[to].fiber, 0);
#endif
    swapcontext(&places_[from].context, &places_[to].context);
    arrive();
  }

  // Right after each switch, on the stack where the thread now is.
  void arrive() {
#if defined(__SANITIZE_ADDRESS__)
    Place& before = places_[1 - at_];
    __sanitizer_finish_switch_fiber(places_[at_].fake_stack, &before.bottom, &before.bytes);
#endif
  }

  const std::function<void()>& second_;
  const std::function<void(bool second)>& turn_;
  Turns* outer_ = running;
  Stack stack_;
  Place places_[2];
  int at_ = 0;          // which computation goes on
  bool begun_ = false;  // the second
  bool ended_[2] = {false, false};
  std::exception_ptr error_;  // of the first that failed
};

}  // namespace

void in_turns(const std::function<void()>& first, const std::function<void()>& second,
              const std::function<void(bool second)>& turn) {
  Turns(second, turn).run(first);
}

void hand_over() {
  if (running != nullptr) running->hand_over();
}

}  // namespace pptrain::comm
