// What a dry group records is what a rank of the transports sends.
#include "parallel/comm/dry/dry_communicator.h"

#include <functional>
#include <numeric>
#include <vector>

#include "core/kernels/dry_run.h"
#include "test/parallel/comm/counting_communicator.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::comm {
namespace {

using at::Tensor;
using Exchange = std::function<void(Communicator&, const at::TensorOptions&)>;

// Elements for each rank. A shorter sum travels whole, in fewer messages than a dry group counts.
constexpr int64_t part = 16384;

Tensor parts(const Communicator& comm, const at::TensorOptions& options) {
  return at::empty({part * comm.size()}, options);
}

// Rank r of a group gets or gives 5 + r elements, so no two counts are equal.
std::vector<int64_t> uneven(const Communicator& comm) {
  std::vector<int64_t> counts(static_cast<size_t>(comm.size()));
  std::iota(counts.begin(), counts.end(), 5);
  return counts;
}

void require_equal_traffic(const Exchange& exchange) {
  for (int size = 1; size <= 4; ++size) {
    for (int rank = 0; rank < size; ++rank) {
      CAPTURE(size, rank);
      test::Sent sent;
      test::CountingCommunicator transport(rank, size, sent);
      exchange(transport, at::kInt);

      const kernels::DryRun run;
      exchange(*make_dry(kernels::Wire::cp, rank, size), at::TensorOptions(at::kInt).device(at::kMeta));
      const kernels::Traffic& traffic = run.cost().on(kernels::Wire::cp);
      CHECK(traffic.bytes == static_cast<double>(sent.bytes));
      CHECK(traffic.messages == sent.messages);
    }
  }
}

TEST_CASE("a dry group records the bytes and messages that a rank of a transport sends") {
  SECTION("all_reduce_sum") {
    require_equal_traffic(
        [](Communicator& comm, auto options) { comm.all_reduce_sum(parts(comm, options)); });
  }
  SECTION("iall_reduce_sum") {
    require_equal_traffic(
        [](Communicator& comm, auto options) { comm.iall_reduce_sum(parts(comm, options))->wait(); });
  }
  SECTION("all_gather") {
    require_equal_traffic([](Communicator& comm, auto options) {
      comm.all_gather(at::empty({comm.size(), part}, options), at::empty({part}, options));
    });
  }
  SECTION("iall_gather") {
    require_equal_traffic([](Communicator& comm, auto options) {
      comm.iall_gather(parts(comm, options), at::empty({part}, options))->wait();
    });
  }
  SECTION("ireduce_scatter_sum") {
    require_equal_traffic([](Communicator& comm, auto options) {
      const std::vector<int64_t> counts = uneven(comm);
      const Tensor of_all = at::empty({std::reduce(counts.begin(), counts.end())}, options);
      const Tensor own = at::empty({counts[static_cast<size_t>(comm.rank())]}, options);
      comm.ireduce_scatter_sum(own, of_all, counts)->wait();
    });
  }
  SECTION("iall_to_all") {
    require_equal_traffic([](Communicator& comm, auto options) {
      const std::vector<int64_t> to = uneven(comm);
      const std::vector<int64_t> from(to.size(), to[static_cast<size_t>(comm.rank())]);
      const Tensor out = at::empty({std::reduce(from.begin(), from.end())}, options);
      const Tensor in = at::empty({std::reduce(to.begin(), to.end())}, options);
      comm.iall_to_all(out, from, in, to)->wait();
    });
  }
  SECTION("messages") {
    require_equal_traffic([](Communicator& comm, auto options) {
      if (comm.size() == 1) return;
      const int other = (comm.rank() + 1) % comm.size();
      comm.isend(at::empty({part}, options), other)->wait();
      comm.irecv(at::empty({part}, options), other)->wait();
    });
  }
}

TEST_CASE("a dry group takes tensors of the meta device alone, and ranks that it has") {
  const auto comm = make_dry(kernels::Wire::tp, 1, 2);
  CHECK_THROWS_AS(comm->all_reduce_sum(at::empty({4}, at::kFloat)), Error);
  CHECK_THROWS_AS(comm->subgroup({}), Error);
  CHECK_THROWS_AS(make_dry(kernels::Wire::tp, 2, 2), Error);
  CHECK_THROWS_AS(make_dry(kernels::Wire::tp, 0, 0), Error);
  const Tensor meta = at::empty({4}, at::TensorOptions(at::kFloat).device(at::kMeta));
  CHECK_THROWS_AS(comm->isend(meta, 2), Error);
  CHECK_THROWS_AS(comm->broadcast(meta, -1), Error);
}

}  // namespace
}  // namespace pptrain::comm
