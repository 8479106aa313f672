// Which ranks of a group that is on several hosts exchange what.
#include "parallel/comm/host_blocks.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "test/parallel/comm/counting_communicator.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

namespace pptrain::comm {
namespace {

using Hosts = std::vector<int>;

// `count` hosts of `ranks` each.
Hosts hosts_of(int count, int ranks) {
  Hosts hosts;
  for (int host = 0; host < count; ++host) hosts.insert(hosts.end(), static_cast<size_t>(ranks), host);
  return hosts;
}

TEST_CASE("a block is the largest power of two of ranks in a row that share a host everywhere") {
  const auto block = [](const Hosts& hosts) { return HostBlocks::within(hosts).block; };
  CHECK(block(hosts_of(2, 8)) == 8);
  CHECK(block(hosts_of(3, 4)) == 4);
  CHECK(block(hosts_of(2, 6)) == 2);
  CHECK(block(hosts_of(2, 3)) == 1);
  CHECK(block({0, 0, 1, 1, 2}) == 2);
  CHECK(block({0, 1, 0, 1}) == 1);
  CHECK(block({0, 0, 1, 1, 0, 0, 1, 1}) == 2);
  CHECK_FALSE(HostBlocks::within(hosts_of(1, 5)).two_steps());
  CHECK_FALSE(HostBlocks::within(hosts_of(5, 1)).two_steps());
  CHECK(HostBlocks::within(hosts_of(2, 2)).two_steps());
}

TEST_CASE("every rank has one relay in each block, and serves itself") {
  const int ranks = GENERATE(1, 2, 5, 8, 11, 16);
  const int block = GENERATE(1, 2, 4, 16);
  const HostBlocks blocks{.ranks = ranks, .block = block};
  std::vector<int> served(static_cast<size_t>(ranks));
  for (int relay = 0; relay < ranks; ++relay) {
    CHECK(blocks.relay(blocks.of(relay), relay) == relay);
    for (const int rank : blocks.served_by(relay)) {
      ++served[static_cast<size_t>(rank)];
      CHECK(blocks.relay(blocks.of(relay), rank) == relay);
    }
  }
  for (const int count : served) CHECK(count == blocks.count());
}

// Bytes that ranks of one host send to other hosts in a collective of `n` elements; the most of all hosts.
double between_hosts(const Hosts& hosts, bool known, int64_t n,
                     const std::function<void(Communicator&, const at::Tensor&, const at::Tensor&)>& run) {
  const int size = static_cast<int>(hosts.size());
  std::vector<double> bytes(hosts.size());
  for (int rank = 0; rank < size; ++rank) {
    test::Sent sent;
    {
      test::CountingCommunicator comm(rank, size, sent);
      if (known) comm.set_hosts(hosts);
      const at::Tensor whole = at::empty({n}, at::kFloat);
      run(comm, whole, whole.narrow(0, n / size * rank, n / size));
    }
    const auto host = static_cast<size_t>(hosts[static_cast<size_t>(rank)]);
    for (const auto& [peer, count] : sent.bytes_to) {
      if (hosts[static_cast<size_t>(peer)] != hosts[static_cast<size_t>(rank)])
        bytes[host] += static_cast<double>(count);
    }
  }
  return std::ranges::max(bytes);
}

TEST_CASE("what is the same for a block crosses hosts once") {
  const auto [count, ranks] = GENERATE(std::pair(2, 8), std::pair(8, 8), std::pair(2, 2), std::pair(3, 4));
  const Hosts hosts = hosts_of(count, ranks);
  constexpr int64_t n = 16 * 64 * 3 * 100;  // longer than 32 KiB for each rank
  const double whole = n * sizeof(float);
  const double others = 1.0 * (count - 1) / count;  // of a tensor: what a ring sends out of a host, nearly
  const auto reduce_scatter = [](Communicator& comm, const at::Tensor& tensor, const at::Tensor& part) {
    comm.ireduce_scatter_sum(part, tensor)->wait();
  };
  const auto gather = [](Communicator& comm, const at::Tensor& tensor, const at::Tensor& part) {
    comm.iall_gather(tensor, part)->wait();
  };
  const auto all_reduce = [](Communicator& comm, const at::Tensor& tensor, const at::Tensor& /*part*/) {
    comm.iall_reduce_sum(tensor)->wait();
  };
  CHECK(between_hosts(hosts, true, n, reduce_scatter) == Approx(others * whole));
  CHECK(between_hosts(hosts, true, n, gather) == Approx(others * whole));
  CHECK(between_hosts(hosts, true, n, all_reduce) == Approx(2 * others * whole));
  // From each rank to each other one.
  CHECK(between_hosts(hosts, false, n, reduce_scatter) == Approx(ranks * others * whole));
  CHECK(between_hosts(hosts, false, n, gather) == Approx(ranks * others * whole));
}

}  // namespace
}  // namespace pptrain::comm
