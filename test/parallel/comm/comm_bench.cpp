// Times messages between two ranks on the transport that its environment asks for:
//   comm_bench                         threads
//   mpirun -np 2 comm_bench            MPI
//   torchrun --no-python --nproc-per-node 2 comm_bench        TCP
#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/base/error.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/thread/thread_communicator.h"

namespace pptrain::comm {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Half of a round trip, in microseconds.
double latency(Communicator& world, int64_t bytes) {
  const at::Tensor tensor = at::zeros({bytes}, at::kByte);
  const int other = 1 - world.rank();
  std::vector<double> times;
  for (int round = 0; round < 200; ++round) {
    const auto start = Clock::now();
    if (world.rank() == 0) world.isend(tensor, other)->wait({});
    world.irecv(tensor, other)->wait({});
    if (world.rank() == 1) world.isend(tensor, other)->wait({});
    times.push_back(us_since(start) / 2);
  }
  return median(times);
}

// One way with eight messages under way, in GB/s.
double bandwidth(Communicator& world, int64_t bytes) {
  constexpr int window = 8;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < window; ++i) tensors.push_back(at::zeros({bytes}, at::kByte));
  std::vector<double> rates;
  for (int round = 0; round < 50; ++round) {
    world.barrier();
    const auto start = Clock::now();
    std::vector<std::unique_ptr<Work>> works;
    for (const at::Tensor& tensor : tensors) {
      works.push_back(world.rank() == 0 ? world.isend(tensor, 1) : world.irecv(tensor, 0));
    }
    for (const auto& work : works) work->wait({});
    rates.push_back(static_cast<double>(window * bytes) / us_since(start) / 1e3);
  }
  return median(rates);
}

// Works without a call to the transport.
void compute(std::chrono::milliseconds time) {
  volatile double sink = 0;
  for (const auto start = Clock::now(); Clock::now() - start < time;) sink = sink + 1;
}

// How long rank 1 waits for a message whose sender computes for 50 ms after isend, in milliseconds.
double wait_for_busy_sender(Communicator& world, int64_t bytes, bool receiver_computes) {
  const at::Tensor tensor = at::zeros({bytes}, at::kByte);
  std::vector<double> times;
  for (int round = 0; round < 11; ++round) {
    world.barrier();
    if (world.rank() == 0) {
      const auto work = world.isend(tensor, 1);
      compute(std::chrono::milliseconds(50));
      work->wait({});
    } else {
      const auto work = world.irecv(tensor, 0);
      if (receiver_computes) compute(std::chrono::milliseconds(20));
      const auto start = Clock::now();
      work->wait({});
      times.push_back(us_since(start) / 1e3);
    }
  }
  return world.rank() == 1 ? median(times) : 0;
}

void bench(Communicator& world) {
  if (world.size() != 2) throw UsageError("comm_bench takes two ranks");
  const auto all = [&](double value) { return all_reduce_sum(world, std::vector<double>{value})[0]; };
  for (const int64_t bytes :
       {int64_t{64}, int64_t{4096}, int64_t{65536}, int64_t{524288}, int64_t{4} << 20}) {
    const double time = latency(world, bytes);
    const double rate = bandwidth(world, bytes);
    const double idle = all(wait_for_busy_sender(world, bytes, false));
    const double busy = all(wait_for_busy_sender(world, bytes, true));
    if (world.rank() == 0) {
      fmt::print(
          "{:8} B: latency {:8.1f} us, {:6.2f} GB/s; sender busy for 50 ms: wait {:6.2f} ms, "
          "after 20 ms of work {:6.2f} ms\n",
          bytes, time, rate, idle, busy);
    }
  }
}

}  // namespace
}  // namespace pptrain::comm

int main() {
  using namespace pptrain::comm;
  at::set_num_threads(1);
  try {
    const Launch launch = detect_launch();
    if (launch.kind == LaunchKind::threads) {
      run_thread_ranks(2, bench);
    } else {
      bench(*make_world(launch));
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
