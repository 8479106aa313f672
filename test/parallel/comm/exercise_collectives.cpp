// Collectives with handles, against plain loops over the known operands of every rank.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <random>
#include <thread>
#include <type_traits>

#include "core/base/error.h"
#include "test/parallel/comm/exercise.h"
#include "test/support/ops.h"
#include "test/support/sum_in_pairs.h"

namespace pptrain::comm::test {
namespace {

using CountList = std::vector<int64_t>;

// An integer from -999 to 999, for floating-point types times 0.37. A loop of our own, since several calls of
// ATen took most of these tests' time.
template <typename T>
void fill_operand(T* to, int64_t begin, int64_t size, int64_t offset) {
  for (int64_t i = 0; i < size; ++i) {
    const auto step = static_cast<int>(static_cast<uint32_t>((begin + i) * 31 + offset) % 1999) - 999;
    to[i] = static_cast<T>(std::is_integral_v<T> ? step : step * 0.37);
  }
}

at::Tensor sum_of_all(int ranks, int64_t size, int seed, at::ScalarType type, int64_t begin = 0) {
  return pptrain::test::sum_in_pairs([&](int rank) { return operand(rank, size, seed, type, begin); }, ranks);
}

int64_t total(const CountList& counts) {
  int64_t sum = 0;
  for (const int64_t count : counts) sum += count;
  return sum;
}

int64_t begin_of(const CountList& counts, int rank) {
  return total({counts.begin(), counts.begin() + rank});
}

// Parts of about `size` elements, some of them empty.
CountList uneven(int ranks, int64_t size, int seed) {
  CountList counts;
  for (int r = 0; r < ranks; ++r) counts.push_back((r + seed) % 3 == 1 ? 0 : size + (r * 13 + seed * 5) % 29);
  return counts;
}

struct Running {
  std::unique_ptr<Work> work;
  std::function<void()> check;
};

Running all_reduce(Communicator& comm, int64_t size, int seed, at::ScalarType type) {
  const at::Tensor tensor = operand(comm.rank(), size, seed, type);
  return {comm.iall_reduce_sum(tensor), [=, ranks = comm.size()] {
            expect(at::equal(tensor, sum_of_all(ranks, size, seed, type)),
                   fmt::format("iall_reduce_sum of {} x {}", size, c10::toString(type)));
          }};
}

// With `in_place` the result overwrites this rank's slice of the operand.
Running reduce_scatter(Communicator& comm, const CountList& counts, bool give_counts, bool in_place, int seed,
                       at::ScalarType type) {
  const int me = comm.rank();
  const int64_t size = total(counts);
  const at::Tensor tensor = operand(me, size, seed, type);
  const at::Tensor part = tensor.narrow(0, begin_of(counts, me), counts[me]);
  const at::Tensor out = in_place ? part : at::full({counts[me]}, 7, tensor.options());
  return {comm.ireduce_scatter_sum(out, tensor, give_counts ? Counts(counts) : Counts()),
          [=, ranks = comm.size()] {
            expect(in_place || at::equal(tensor, operand(me, size, seed, type)),
                   "ireduce_scatter_sum has changed its operand");
            expect(at::equal(out, sum_of_all(ranks, counts[me], seed, type, begin_of(counts, me))),
                   fmt::format("ireduce_scatter_sum of {} x {}", size, c10::toString(type)));
          }};
}

// Parts lie from the last rank's to the first one's.
Running reduce_scatter_backwards(Communicator& comm, const CountList& counts, int seed, at::ScalarType type) {
  const int me = comm.rank();
  std::vector<int> order;
  for (int r = comm.size() - 1; r >= 0; --r) order.push_back(r);
  const int64_t begin = total({counts.begin() + me + 1, counts.end()});
  const at::Tensor tensor = operand(me, total(counts), seed, type);
  const at::Tensor out = at::full({counts[me]}, 7, tensor.options());
  return {comm.ireduce_scatter_sum(out, tensor, counts, order), [=, ranks = comm.size()] {
            expect(at::equal(out, sum_of_all(ranks, counts[me], seed, type, begin)),
                   fmt::format("ireduce_scatter_sum of {}, backwards", total(counts)));
          }};
}

Running all_gather(Communicator& comm, const CountList& counts, bool give_counts, bool in_place, int seed,
                   at::ScalarType type) {
  const int me = comm.rank();
  const at::Tensor mine = operand(me, counts[me], seed, type);
  const at::Tensor out = at::full({total(counts)}, 7, mine.options());
  const at::Tensor part = out.narrow(0, begin_of(counts, me), counts[me]);
  if (in_place) part.copy_(mine);
  return {comm.iall_gather(out, in_place ? part : mine, give_counts ? Counts(counts) : Counts()), [=] {
            std::vector<at::Tensor> parts;
            for (size_t r = 0; r < counts.size(); ++r) {
              parts.push_back(operand(static_cast<int>(r), counts[r], seed, type));
            }
            expect(at::equal(out, pptrain::test::cat(parts)),
                   fmt::format("iall_gather of {}", total(counts)));
          }};
}

// The message from rank `from` to rank `to`.
int64_t sent(int from, int to, int64_t size, int seed) {
  return (from + 2 * to + seed) % 4 == 0 ? 0 : (from * 131 + to * 71 + seed * 5 + size) % (size + 1);
}

Running all_to_all(Communicator& comm, int64_t size, int seed, at::ScalarType type) {
  const int me = comm.rank();
  const auto message = [=](int from, int to) {
    return operand(from * 100 + to, sent(from, to, size, seed), seed, type);
  };
  CountList from, to;
  std::vector<at::Tensor> outgoing, expected;
  for (int r = 0; r < comm.size(); ++r) {
    to.push_back(sent(me, r, size, seed));
    from.push_back(sent(r, me, size, seed));
    outgoing.push_back(message(me, r));
    expected.push_back(message(r, me));
  }
  const at::Tensor out = at::full({total(from)}, 7, outgoing.front().options());
  const at::Tensor all = pptrain::test::cat(outgoing);
  return {comm.iall_to_all(out, from, all, to), [=, expected = pptrain::test::cat(expected)] {
            expect(at::equal(out, expected), fmt::format("iall_to_all of {} and {}", total(from), total(to)));
          }};
}

// The `n`th of a series of collectives of all kinds, types and sizes.
Running nth(Communicator& comm, int n) {
  constexpr at::ScalarType types[] = {at::kFloat, at::kBFloat16, at::kLong, at::kDouble};
  constexpr int64_t sizes[] = {1, 7, 1003, 0, 40'001, 12'345};
  const at::ScalarType type = types[n % 4];
  const int64_t size = sizes[n % 6];
  const CountList even(static_cast<size_t>(comm.size()), size);
  const CountList odd = uneven(comm.size(), size, n);
  const bool in_place = n % 2 == 0;
  switch (n % 8) {
    case 0:
      return all_reduce(comm, size, n, type);
    case 1:
      return reduce_scatter(comm, even, false, in_place, n, type);
    case 2:
      return all_to_all(comm, size, n, type);
    case 3:
      return all_gather(comm, odd, true, in_place, n, type);
    case 4:
      return reduce_scatter(comm, odd, true, in_place, n, type);
    case 5:
      return all_gather(comm, even, false, in_place, n, type);
    case 6:
      return reduce_scatter_backwards(comm, odd, n, type);
    default:
      return all_reduce(comm, 3 * size + 1, n, type);
  }
}

// Many under way at once; every rank waits for them in an order of its own.
void many_at_once(Communicator& comm, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    std::vector<Running> running;
    for (int n = 0; n < 24; ++n) running.push_back(nth(comm, round * 24 + n));
    std::mt19937 random(static_cast<uint32_t>(round * 100 + comm.rank()));
    std::ranges::shuffle(running, random);
    if (round == 1) std::ranges::reverse(running);
    for (const Running& one : running) {
      one.work->wait([] { return "one of many collectives"; });
      one.check();
      expect(one.work->done() && one.work->wait_for(std::chrono::milliseconds(0)), "done() after wait()");
    }
  }
}

// Blocking collectives and messages run between those that are under way.
void among_others(Communicator& comm) {
  const int next = (comm.rank() + 1) % comm.size();
  const int previous = (comm.rank() + comm.size() - 1) % comm.size();
  const at::Tensor received = at::zeros({50'000});
  std::unique_ptr<Work> receive;
  if (comm.size() > 1) receive = comm.irecv(received, previous);
  std::vector<Running> running;
  for (int n = 0; n < 7; ++n) {
    running.push_back(nth(comm, n));
    const at::Tensor blocking = operand(comm.rank(), 20'011, n, at::kFloat);
    comm.all_reduce_sum(blocking);
    expect(at::equal(blocking, sum_of_all(comm.size(), 20'011, n, at::kFloat)),
           "a blocking sum among others");
    const at::Tensor shared = at::full({300}, comm.rank());
    comm.broadcast(shared, n % comm.size());
    expect(at::equal(shared, at::full({300}, n % comm.size())), "a broadcast among others");
  }
  comm.barrier();
  if (comm.size() > 1) {
    comm.isend(operand(comm.rank(), 50'000, 1, at::kFloat), next)->wait();
    receive->wait();
    expect(at::equal(received, operand(previous, 50'000, 1, at::kFloat)), "a message among collectives");
  }
  for (auto one = running.rbegin(); one != running.rend(); ++one) {
    one->work->wait();
    one->check();
  }
}

// The sum is larger than its scratch memory, so it takes several windows.
void large_sum(Communicator& comm) {
  const CountList counts = uneven(comm.size(), 4'300'001 / comm.size(), 2);
  const Running sum = reduce_scatter(comm, counts, true, true, 4, at::kFloat);
  sum.work->wait();
  sum.check();
}

// The same with ranks on several hosts, as the communicator is told.
void on_hosts(Communicator& world) {
  for (int ranks_of_host = 2; ranks_of_host < 2 * world.size(); ranks_of_host *= 2) {
    const auto comm = world.duplicate();
    std::vector<int> hosts;
    for (int r = 0; r < comm->size(); ++r) hosts.push_back(r / ranks_of_host);
    comm->set_hosts(hosts);
    many_at_once(*comm, 1);
    large_sum(*comm);
    const Running sum = all_reduce(*comm, 2'500'007, 7, at::kFloat);
    sum.work->wait();
    sum.check();
  }
}

// Sums finish although no rank waits for them.
void sums_without_waiting(Communicator& comm) {
  const Running sum = all_reduce(comm, 400'003, 5, at::kFloat);
  const Running part = reduce_scatter(comm, uneven(comm.size(), 200'003, 6), true, false, 6, at::kFloat);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!sum.work->done() || !part.work->done()) {
    expect(std::chrono::steady_clock::now() < deadline, "a sum stands still while its rank computes");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  sum.check();
  part.check();
}

// The operation outlives its Work, and the communicator waits for it.
void abandoned_collectives(Communicator& comm) {
  const at::Tensor tensor = operand(comm.rank(), 100'003, 8, at::kFloat);
  {
    const auto apart = comm.duplicate();
    static_cast<void>(apart->iall_reduce_sum(tensor));
    static_cast<void>(nth(*apart, 3));
  }
  expect(at::equal(tensor, sum_of_all(comm.size(), 100'003, 8, at::kFloat)), "a sum whose work was dropped");
}

template <typename Body>
void expect_error(Body&& body, const std::string& first, const std::string& second) {
  std::string message = "no error";
  try {
    body();
  } catch (const Error& e) {
    message = e.what();
  }
  expect(message.find(first) != std::string::npos && message.find(second) != std::string::npos,
         fmt::format("an error was to name {} and {}, but was: {}", first, second, message));
}

// Errors come before anything is sent, so the ranks stay in step.
void wrong_sizes(Communicator& comm) {
  const int ranks = comm.size();
  const at::Tensor nine = at::zeros({9});
  const at::Tensor parts = at::zeros({ranks * 4 + 1});
  const std::string whole = std::to_string(ranks * 4 + 1);
  const CountList fours(static_cast<size_t>(ranks), 4);
  const CountList one_more(static_cast<size_t>(ranks + 1), 4);
  CountList negative = fours;
  negative.back() = -2;
  expect_error([&] { comm.ireduce_scatter_sum(nine, parts); }, whole, "9");
  expect_error([&] { comm.iall_gather(parts, nine); }, whole, "9");
  expect_error([&] { comm.ireduce_scatter_sum(nine, at::zeros({ranks * 4}), fours); }, "9", "4");
  const std::vector<int> twice(static_cast<size_t>(ranks + 1), 0);
  expect_error([&] { comm.ireduce_scatter_sum(at::zeros({4}), at::zeros({ranks * 4}), fours, twice); },
               "order", std::to_string(ranks));
  expect_error([&] { comm.iall_gather(parts, nine, fours); }, std::to_string(ranks * 4), whole);
  expect_error([&] { comm.iall_gather(parts, nine, one_more); }, std::to_string(ranks + 1),
               std::to_string(ranks));
  expect_error([&] { comm.iall_gather(parts, nine, negative); }, fmt::format("rank {}", ranks - 1), "-2");
  expect_error([&] { comm.iall_to_all(parts, fours, parts, fours); }, std::to_string(ranks * 4), whole);
  expect_error([&] { comm.iall_gather(parts, at::zeros({4}, at::kLong)); }, "Long", "Float");
  expect_error([&] { comm.iall_reduce_sum(at::zeros({4, 3}).t()); }, "iall_reduce_sum", "contiguous");
  CountList to = fours;
  to[comm.rank()] = 5;
  expect_error([&] { comm.iall_to_all(at::zeros({ranks * 4}), fours, parts, to); }, "5", "4");
}

// Small ones of many ranks go along a tree.
void gathers_and_broadcasts(Communicator& world) {
  for (const int64_t size : {int64_t{21}, int64_t{30'000}}) {
    const at::Tensor rows = at::zeros({world.size(), size});
    world.all_gather(rows, operand(world.rank(), size, 0, at::kFloat));
    for (int rank = 0; rank < world.size(); ++rank) {
      const at::Tensor expected = operand(rank, size, 0, at::kFloat);
      expect(at::equal(rows.select(0, rank), expected), fmt::format("all_gather of {}", size));
      const at::Tensor tensor = world.rank() == rank ? expected.clone() : at::zeros({size});
      world.broadcast(tensor, rank);
      expect(at::equal(tensor, expected), fmt::format("broadcast of {} from {}", size, rank));
    }
  }
}

}  // namespace

at::Tensor operand(int rank, int64_t size, int seed, at::ScalarType type, int64_t begin) {
  const int64_t offset = rank * 617 + seed * 101;
  const at::Tensor values = at::empty({size}, type == at::kBFloat16 ? at::kFloat : type);
  switch (values.scalar_type()) {
    case at::kFloat:
      fill_operand(values.data_ptr<float>(), begin, size, offset);
      break;
    case at::kDouble:
      fill_operand(values.data_ptr<double>(), begin, size, offset);
      break;
    case at::kLong:
      fill_operand(values.data_ptr<int64_t>(), begin, size, offset);
      break;
    default:
      throw Error(fmt::format("exercise: no operands of {}", c10::toString(type)));
  }
  return values.to(type);
}

void exercise_collectives(Communicator& world) {
  many_at_once(world, 4);
  among_others(world);
  large_sum(world);
  on_hosts(world);
  sums_without_waiting(world);
  gathers_and_broadcasts(world);
  abandoned_collectives(world);
  wrong_sizes(world);
  world.barrier();
}

}  // namespace pptrain::comm::test
