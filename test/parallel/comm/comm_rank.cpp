// One rank of the tests with several processes. It makes the world of its environment and runs the action of
// its first argument. Exit code 0: as expected; 3: PeerFailure; 1: another error. Errors go to standard
// error.
#include <ATen/Parallel.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "parallel/comm/bootstrap.h"
#include "test/parallel/comm/exercise.h"
#include "test/support/end_process.h"
#include "test/support/ops.h"

namespace pptrain::comm::test {
namespace {

// All ranks sum in a loop until rank 1 ends with `end`.
template <typename End>
void ring_until(Communicator& world, End&& end) {
  for (int round = 0;; ++round) {
    if (world.rank() == 1 && round == 3) end();
    const at::Tensor tensor = at::zeros({100'000});
    world.all_reduce_sum(tensor);
  }
}

// Rank 1 is killed while the others are outside the transport and ignore SIGTERM, as in a wait for a GPU.
void die_beside_work(Communicator& world) {
  signal(SIGTERM, SIG_IGN);
  world.barrier();
  if (world.rank() == 1) raise(SIGKILL);
  std::this_thread::sleep_for(std::chrono::minutes(10));
}

// Rank 0 sends its last messages and ends; the others exchange more messages.
void leave_early(std::unique_ptr<Communicator> world) {
  constexpr int64_t size = 3'000'000;
  if (world->rank() == 0) {
    for (int r = 1; r < world->size(); ++r) world->isend(at::full({size}, 7.0), r);
    return;
  }
  // Rank 0 has ended by now.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const at::Tensor token = at::full({1}, world->rank());
  for (int r = 1; r < world->size(); ++r) {
    if (r != world->rank()) world->isend(token, r);
  }
  for (int r = 1; r < world->size(); ++r) {
    if (r == world->rank()) continue;
    const at::Tensor other = at::zeros({1}, token.options());
    world->irecv(other, r)->wait({});
    if (other.item<int64_t>() != r) throw Error("a message between the ranks that stayed is damaged");
  }
  const at::Tensor received = at::zeros({size});
  world->irecv(received, 0)->wait({});
  if (received.sum().item<double>() != 7.0 * size) throw Error("a message of a rank that left is damaged");
}

// As leave_early, but rank 0 ends before it has sent an expected message.
void owe_message(Communicator& world) {
  if (world.rank() == 0) return;
  const at::Tensor tensor = at::zeros({1});
  world.irecv(tensor, 0)->wait([] { return "RECV_F stage 1 microbatch 0"; });
}

// Rank 0 sends more than rank 1 receives.
void misfit(Communicator& world) {
  const at::Tensor tensor = at::zeros({world.rank() == 0 ? 1 << 18 : 256});
  const auto work = world.rank() == 0 ? world.isend(tensor, 1) : world.irecv(tensor, 0);
  work->wait([] { return "RECV_F stage 1 microbatch 0"; });
  world.barrier();
}

void run(const std::string& mode, std::unique_ptr<Communicator> world) {
  if (mode == "exercise") return exercise(*world);
  if (mode == "timeout") {
    std::fprintf(stderr, "%s\n", provoke_timeout(*world).c_str());
    throw Error("timeout");
  }
  if (mode == "die") ring_until(*world, [] { raise(SIGKILL); });
  if (mode == "die_beside_work") die_beside_work(*world);
  if (mode == "abort") {
    ring_until(*world, [&] {
      world->abort("boom");
      throw Error("boom");
    });
  }
  if (mode == "throw") ring_until(*world, [] { throw Error("boom"); });
  if (mode == "owe") return owe_message(*world);
  if (mode == "misfit") return misfit(*world);
  if (mode == "leave") return leave_early(std::move(world));
  throw Error("unknown mode " + mode);
}

}  // namespace
}  // namespace pptrain::comm::test

namespace {

int run(const char* mode) {
  at::set_num_threads(1);
  try {
    pptrain::comm::test::run(mode, pptrain::comm::make_world(pptrain::comm::detect_launch()));
    return 0;
  } catch (const pptrain::PeerFailure& e) {
    std::fprintf(stderr, "PeerFailure: %s\n", e.what());
    return 3;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

}  // namespace

int main(int argc, char** argv) {
  pptrain::test::end_process(run(argc > 1 ? argv[1] : ""));
}
