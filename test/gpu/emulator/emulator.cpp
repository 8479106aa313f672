#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/kernels/cuda/cuda_api.h"

namespace pptrain::kernels::cuda {
namespace emulator {
namespace {

constexpr unsigned lanes = 32;
constexpr std::size_t stack_bytes = 128 * 1024;

enum class State { kReady, kAtShuffle, kAtBarrier, kDone };

struct Fiber {
  ucontext_t start{};  // used once; then `place` says where it goes on
  jmp_buf place{};
  bool has_started = false;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(stack_bytes);
  State state = State::kReady;
  // The lane's values for its warp, in turns: a slot is written again only after the next shuffle, when all
  // have read it.
  double slots[2] = {0, 0};
  unsigned turn = 0;
};

// The running block.
struct Block {
  jmp_buf scheduler{};
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<double> shared;  // double for its alignment
  const std::function<void()>* kernel = nullptr;
  unsigned current = 0;
};

Block& block() {
  static Block instance;
  return instance;
}

// A switch by _longjmp is some instructions. swapcontext also sets the signal mask, by a call of the kernel
// that took four fifths of these tests' time.
void give_way(State state) {
  Fiber& self = *block().fibers[block().current];
  self.state = state;
  if (_setjmp(self.place) == 0) {
    _longjmp(block().scheduler, 1);
  }
}

// A fiber serves its thread number in block after block.
void serve() {
  while (true) {
    (*block().kernel)();
    give_way(State::kDone);
  }
}

void add_fiber() {
  Fiber& fiber = *block().fibers.emplace_back(std::make_unique<Fiber>());
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = stack_bytes;
  makecontext(&fiber.start, serve, 0);
}

void resume(unsigned thread) {
  Block& b = block();
  b.current = thread;
  threadIdx = dim3(thread);
  if (_setjmp(b.scheduler) != 0) {
    return;  // the fiber has given way
  }
  Fiber& fiber = *b.fibers[thread];
  if (fiber.has_started) {
    _longjmp(fiber.place, 1);
  }
  fiber.has_started = true;
  setcontext(&fiber.start);
  std::abort();  // it has not begun
}

bool all_in(State state, unsigned begin, unsigned end) {
  return std::all_of(block().fibers.begin() + begin, block().fibers.begin() + end,
                     [&](const auto& fiber) { return fiber->state == state; });
}

void set_all(State state, unsigned begin, unsigned end) {
  std::for_each(block().fibers.begin() + begin, block().fibers.begin() + end,
                [&](const auto& fiber) { fiber->state = state; });
}

// Runs the threads [begin, begin + 32) as far as they can without the rest of the block. Returns whether any
// moved.
bool advance_warp(unsigned begin) {
  bool moved = false;
  while (true) {
    for (unsigned i = 0; i < lanes; ++i) {
      const unsigned thread = begin + (reversed ? lanes - 1 - i : i);
      if (block().fibers[thread]->state == State::kReady) {
        resume(thread);
        moved = true;
      }
    }
    if (!all_in(State::kAtShuffle, begin, begin + lanes)) {
      return moved;
    }
    set_all(State::kReady, begin, begin + lanes);
  }
}

// Each warp in turn runs ahead of all others up to the next barrier: in this order a missing barrier does the
// most harm.
void advance_block(const char* name, unsigned threads) {
  bool moved = false;
  for (unsigned i = 0; i < threads; i += lanes) {
    moved |= advance_warp(reversed ? threads - lanes - i : i);
  }
  if (all_in(State::kAtBarrier, 0, threads)) {
    set_all(State::kReady, 0, threads);
  } else if (!moved) {
    block().fibers.clear();  // they stopped in the middle of this kernel
    throw Error(std::string(name) + ": some threads wait at a barrier or shuffle that others never reach");
  }
}

void run_block(const char* name, unsigned threads) {
  Block& b = block();
  for (unsigned t = 0; t < threads; ++t) {
    b.fibers[t]->state = State::kReady;
    b.fibers[t]->turn = 0;
  }
  while (!all_in(State::kDone, 0, threads)) {
    advance_block(name, threads);
  }
}

}  // namespace

void run_grid(const char* name, dim3 grid, unsigned threads, std::size_t shared_bytes,
              const std::function<void()>& kernel) {
  if (threads == 0 || threads > 1024 || threads % lanes != 0 || grid.x == 0 || grid.y == 0 ||
      grid.y > 65535 || shared_bytes > 48 * 1024) {
    throw Error(std::string(name) + ": a launch that the hardware would refuse");
  }
  Block& b = block();
  while (b.fibers.size() < threads) {
    add_fiber();
  }
  b.kernel = &kernel;
  blockDim = dim3(threads);
  gridDim = grid;
  const std::uint64_t blocks = static_cast<std::uint64_t>(grid.x) * grid.y;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    const std::uint64_t at = reversed ? blocks - 1 - i : i;
    blockIdx = dim3(static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x));
    b.shared.assign(shared_bytes / sizeof(double) + 2, std::numeric_limits<double>::quiet_NaN());
    run_block(name, threads);
  }
}

void block_barrier() {
  give_way(State::kAtBarrier);
}

double exchange(double x, int lane_mask) {
  const auto& fibers = block().fibers;
  const unsigned self = block().current;
  const unsigned turn = fibers[self]->turn;
  fibers[self]->slots[turn] = x;
  fibers[self]->turn = 1 - turn;
  give_way(State::kAtShuffle);
  return fibers[self ^ static_cast<unsigned>(lane_mask)]->slots[turn];
}

void* shared_memory() {
  const auto address = reinterpret_cast<std::uintptr_t>(block().shared.data());
  return reinterpret_cast<void*>((address + 15) / 16 * 16);
}

}  // namespace emulator
}  // namespace pptrain::kernels::cuda
