#include "test/parallel/comm/exercise.h"

#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <thread>

#include "core/base/error.h"
#include "parallel/comm/host_values.h"
#include "test/support/ops.h"
#include "test/support/sum_in_pairs.h"

namespace pptrain::comm::test {
namespace {

using Works = std::vector<std::unique_ptr<Work>>;

void wait_all(Works& works) {
  for (const auto& work : works) work->wait({});
  works.clear();
}

// Both sides know the values: they depend only on the ranks, the number in the sequence, and the size.
at::Tensor payload(int from, int to, int number, int64_t size) {
  return at::arange(size, at::kInt) + (from * 1'000'003 + to * 10'007 + number * 101);
}

constexpr int64_t sizes[] = {1, 0, 3, 131072, 17, 1000, 700000, 2, 2};

// All sends come before any receive: a send never waits for its receive to be posted.
void sends_first(Communicator& world) {
  Works works;
  for (int to = 0; to < world.size(); ++to) {
    for (int n = 0; n < std::ssize(sizes) && to != world.rank(); ++n) {
      works.push_back(world.isend(payload(world.rank(), to, n, sizes[n]), to));
    }
  }
  for (int from = 0; from < world.size(); ++from) {
    for (int n = 0; n < std::ssize(sizes) && from != world.rank(); ++n) {
      const at::Tensor received = at::empty({sizes[n]}, at::kInt);
      world.irecv(received, from)->wait({});
      expect(at::equal(received, payload(from, world.rank(), n, sizes[n])),
             fmt::format("message {} from rank {} at rank {}", n, from, world.rank()));
    }
  }
  wait_all(works);
}

// All receives are posted before any send, and waited for in reverse. The barrier in between matches none of
// these messages.
void receives_first(Communicator& world) {
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
  Works receives;
  for (int from = 0; from < world.size(); ++from) {
    for (int n = 0; n < std::ssize(sizes) && from != world.rank(); ++n) {
      pairs.emplace_back(at::empty({sizes[n]}, at::kInt), payload(from, world.rank(), n, sizes[n]));
      receives.push_back(world.irecv(pairs.back().first, from));
    }
  }
  world.barrier();
  Works sends;
  for (int to = 0; to < world.size(); ++to) {
    for (int n = 0; n < std::ssize(sizes) && to != world.rank(); ++n) {
      sends.push_back(world.isend(payload(world.rank(), to, n, sizes[n]), to));
    }
  }
  for (auto work = receives.rbegin(); work != receives.rend(); ++work) (*work)->wait({});
  for (const auto& [received, expected] : pairs)
    expect(at::equal(received, expected), "a message received early");
  for (const auto& work : receives) expect(work->done(), "done() after wait()");
  wait_all(sends);
}

// The operation outlives its Work.
void abandoned_works(Communicator& world) {
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  for (int n = 0; n < 3; ++n) world.isend(payload(world.rank(), next, n, 300'000), next);
  world.barrier();
  for (int n = 0; n < 3; ++n) {
    const at::Tensor received = at::empty({300'000}, at::kInt);
    world.irecv(received, previous)->wait({});
    expect(at::equal(received, payload(previous, world.rank(), n, 300'000)),
           "a message whose work was dropped");
  }
}

// A message that is not received yet blocks no other communicator.
void independent_communicators(Communicator& world) {
  const auto a = world.duplicate();
  std::vector<int> reversed;
  for (int rank = world.size() - 1; rank >= 0; --rank) reversed.push_back(rank);
  const auto b = world.subgroup(reversed);
  expect(b->rank() == world.size() - 1 - world.rank(), "a group has the order that it is given");
  const auto in_b = [&](int rank) { return world.size() - 1 - rank; };
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  Works works;
  works.push_back(a->isend(payload(1, 2, 3, 400'000), next));
  works.push_back(b->isend(payload(4, 5, 6, 400'000), in_b(next)));
  const at::Tensor first = at::empty({400'000}, at::kInt);
  const at::Tensor second = at::empty({400'000}, at::kInt);
  b->irecv(first, in_b(previous))->wait({});
  a->irecv(second, previous)->wait({});
  expect(at::equal(first, payload(4, 5, 6, 400'000)), "a message of the second communicator");
  expect(at::equal(second, payload(1, 2, 3, 400'000)), "a message of the first communicator");
  wait_all(works);
}

// A message of another size than its receive ends that receive with an error. It writes nothing outside the
// buffer and does not affect later messages. The sizes are near those at which transports change their
// method.
void misfits(Communicator& world) {
  struct Misfit {
    int64_t sent, wanted;
  };
  constexpr Misfit cases[] = {
      {64, 32},     {32, 64}, {1 << 20, 1 << 10}, {1 << 10, 1 << 20}, {8 << 20, 4 << 20}, {0, 8}, {8, 0},
      {5000, 4999}, {3, 3}};
  constexpr int64_t margin = 4096;
  const int next = (world.rank() + 1) % world.size();
  const int previous = (world.rank() + world.size() - 1) % world.size();
  if (world.size() == 1) return;
  for (const auto& [sent, wanted] : cases) {
    const at::Tensor memory = at::full({wanted + 2 * margin}, 7, at::kByte);
    const auto receive = world.irecv(memory.narrow(0, margin, wanted), previous);
    const auto send = world.isend(at::full({sent}, 9, at::kByte), next);
    std::string error;
    try {
      receive->wait({});
    } catch (const Error& e) {
      error = e.what();
    }
    const std::string what =
        fmt::format("a message of {} bytes for a receive of {}: \"{}\"", sent, wanted, error);
    const bool said = error.find(std::to_string(sent)) != std::string::npos &&
                      error.find(std::to_string(wanted)) != std::string::npos;
    expect(sent == wanted ? error.empty() : said, what);
    const at::Tensor expected = at::full({wanted + 2 * margin}, 7, at::kByte);
    if (sent == wanted) expected.narrow(0, margin, wanted).fill_(9);
    expect(at::equal(memory, expected), what + " wrote where it must not");
    try {
      send->wait({});  // threads: the sender gets the error too
    } catch (const Error&) {
    }
    world.barrier();
  }
}

void check_sums(Communicator& comm, const std::vector<int>& members) {
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong}) {
    // Sizes near those at which the method changes, and odd ones.
    for (const int64_t size : {1, 5, 4097, 16391, 100'003, 4'200'001}) {
      if (size > 1'000'000 && type != at::kFloat) continue;
      const auto term = [&](int r) { return operand(members[static_cast<size_t>(r)], size, 0, type); };
      const at::Tensor sum = pptrain::test::sum_in_pairs(term, static_cast<int>(members.size()));
      const at::Tensor mine = operand(members[comm.rank()], size, 0, type);
      comm.all_reduce_sum(mine);
      expect(at::equal(mine, sum), fmt::format("all_reduce_sum of {} x {}", size, c10::toString(type)));
    }
  }
}

void collectives(Communicator& world) {
  std::vector<int> members;
  for (int r = 0; r < world.size(); ++r) members.push_back(r);
  check_sums(world, members);
}

// No rank leaves the barrier before the last one has come.
void barrier_waits(Communicator& world) {
  using Clock = std::chrono::steady_clock;
  for (int late = 0; late < world.size(); ++late) {
    world.barrier();
    const auto start = Clock::now();
    if (world.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(60));
    world.barrier();
    if (world.size() > 1)
      expect(Clock::now() - start >= std::chrono::milliseconds(25), "barrier waits for the last");
  }
}

template <typename Body>
void expect_error(Body&& body, const std::string& what) {
  bool thrown = false;
  try {
    body();
  } catch (const Error&) {
    thrown = true;
  }
  expect(thrown, what);
}

void groups(Communicator& world) {
  std::vector<int> members;
  for (int r = world.size() - 1; r >= 0; --r) {
    if (r % 2 == world.rank() % 2) members.push_back(r);
  }
  const auto half = world.subgroup(members);
  expect(half->size() == static_cast<int>(members.size()) && members[half->rank()] == world.rank(),
         "a group of some ranks");
  check_sums(*half, members);
  const auto one = half->subgroup(std::vector{half->rank()});
  expect(one->size() == 1 && one->rank() == 0, "a group of a group");
  one->barrier();
}

// Ranks are in different numbers of groups, and one list of ranks has several groups.
void overlapping_groups(Communicator& world) {
  for (int other = 1; other < world.size(); ++other) {
    if (world.rank() != 0 && world.rank() != other) continue;
    const auto first = world.subgroup(std::vector{0, other}), second = world.subgroup(std::vector{0, other});
    const double one = 1, ten = 10;
    if (world.rank() == 0) {
      const auto later = second->isend(at::full({1}, ten, at::kDouble), 1);
      first->isend(at::full({1}, one, at::kDouble), 1)->wait({});
      later->wait({});
    } else {
      const at::Tensor of_first = at::empty({1}, at::kDouble), of_second = at::empty({1}, at::kDouble);
      first->irecv(of_first, 0)->wait({});
      second->irecv(of_second, 0)->wait({});
      expect(of_first.item<double>() == one && of_second.item<double>() == ten, "two groups of one list");
    }
  }
  expect_error([&] { world.subgroup(std::vector<int>()); }, "a group without the rank that makes it");
  expect_error([&] { world.subgroup(std::vector{world.rank(), world.size()}); }, "a group with a stranger");
}

void helpers(Communicator& world) {
  const std::vector<double> values{1.5 * world.rank(), -1.0, 1e-300};
  const std::vector<double> sums = all_reduce_sum(world, values);
  const int n = world.size();
  expect(sums.size() == 3 && sums[0] == 1.5 * n * (n - 1) / 2 && sums[1] == -n, "all_reduce_sum of doubles");
  std::vector<double> shared{world.rank() == n - 1 ? 42.25 : 0.0};
  broadcast(world, shared, n - 1);
  expect(shared[0] == 42.25, "broadcast of doubles");
  const std::string text(world.rank() == 0 ? "a text with \0 and \xff" : "");
  expect(broadcast_string(world, text, 0) == "a text with \0 and \xff", "broadcast_string");
  expect(broadcast_string(world, "", 0).empty(), "broadcast_string of an empty one");
  expect(any(world, world.rank() == n - 1), "any, true on one");
  expect(!any(world, false), "any, false on all");
  const std::vector<double> mine(static_cast<size_t>(world.rank()), 0.5 + world.rank());
  const auto gathered = gather(world, mine, n - 1);
  expect(gathered.size() == (world.rank() == n - 1 ? static_cast<size_t>(n) : 0), "gather to one rank");
  for (size_t r = 0; r < gathered.size(); ++r) {
    expect(gathered[r] == std::vector<double>(r, 0.5 + static_cast<double>(r)), "gathered values");
  }
}

// All ranks of a test run on one host, so a measured round trip is nearly zero.
void clocks(Communicator& world) {
  expect(clock_offset(world) == std::chrono::nanoseconds(0), "one host has one clock");
  const auto measured = clock_offset(world, /*same_clock=*/world.rank() == 1);
  expect(world.rank() > 1 || measured == std::chrono::nanoseconds(0), "a rank that has the clock");
  expect(std::chrono::abs(measured) < std::chrono::seconds(1), "a clock that is measured");
}

void bad_calls(Communicator& world) {
  const at::Tensor tensor = at::zeros({4, 4});
  expect_error([&] { world.isend(tensor, world.rank()); }, "isend to oneself is an error");
  expect_error([&] { world.irecv(tensor, world.size()); }, "irecv from nobody is an error");
  expect_error([&] { world.irecv(tensor, -1); }, "irecv from rank -1 is an error");
  expect_error([&] { world.isend(tensor.t(), (world.rank() + 1) % world.size()); },
               "a transposed tensor is an error");
  expect_error(
      [&] {
        world.all_gather(at::zeros({world.size(), 3}), tensor);
      },
      "all_gather into another shape");
  expect_error(
      [&] {
        world.all_gather(at::zeros({4, 4 * world.size()}).t(), tensor);
      },
      "all_gather into a transposed tensor");
  expect_error([&] { world.broadcast(tensor, world.size()); }, "broadcast from nobody");
}

}  // namespace

void expect(bool condition, const std::string& what) {
  if (!condition) throw Error("exercise: " + what);
}

void exercise(Communicator& world) {
  sends_first(world);
  receives_first(world);
  abandoned_works(world);
  independent_communicators(world);
  collectives(world);
  exercise_collectives(world);
  barrier_waits(world);
  groups(world);
  overlapping_groups(world);
  helpers(world);
  clocks(world);
  bad_calls(world);
  misfits(world);
  world.barrier();
}

std::string provoke_timeout(Communicator& world) {
  world.barrier();
  world.set_timeout(std::chrono::milliseconds(100));
  const at::Tensor tensor = at::zeros({8});
  const auto work = world.irecv(tensor, (world.rank() + 1) % world.size());
  try {
    work->wait([] { return "RECV_B stage 5 microbatch 7"; });
  } catch (const PeerFailure&) {
    throw;
  } catch (const Error& e) {
    return e.what();
  }
  throw Error("exercise: a wait for nothing came to an end");
}

}  // namespace pptrain::comm::test
