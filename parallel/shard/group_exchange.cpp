#include "parallel/shard/group_exchange.h"

#include <spdlog/fmt/fmt.h>

#include <numeric>
#include <utility>
#include <vector>

#include "core/base/error.h"

namespace pptrain::shard {
namespace {

// `size` elements in `parts` parts whose sizes differ by one at most.
std::vector<int64_t> even_counts(int64_t size, int parts) {
  std::vector<int64_t> counts;
  for (int part = 0; part < parts; ++part) counts.push_back(size * (part + 1) / parts - size * part / parts);
  return counts;
}

bool shared(const comm::Communicator* ranks) {
  return ranks != nullptr && ranks->size() > 1;
}

}  // namespace

GroupExchange::GroupExchange(nn::ParameterGroup& group, const ShardRanks& ranks)
    : group_(group), ranks_(ranks) {
  const nn::ShardPlace place = group.place().of_pipeline ? nn::ShardPlace() : group.place();
  if (place.count != ranks.shards.size() || place.index != ranks.shards.rank()) {
    throw Error(fmt::format("parameter group {} is shard {} of {}, but this is rank {} of {}", group.name(),
                            place.index, place.count, ranks.shards.rank(), ranks.shards.size()));
  }
  const int replicas = ranks.replicas.size();
  if (ranks.sum.size() != place.count * replicas ||
      ranks.sum.rank() != rank_in_sum(static_cast<int>(place.index), ranks.replicas.rank())) {
    throw Error(fmt::format("parameter group {}: rank {} of {} is not replica {} of {} of shard {} of {}",
                            group.name(), ranks.sum.rank(), ranks.sum.size(), ranks.replicas.rank(), replicas,
                            place.index, place.count));
  }
}

std::unique_ptr<comm::Work> GroupExchange::unshard() {
  if (!is_sharded()) return comm::join();
  group_.restore_whole_compute();
  std::vector<std::unique_ptr<comm::Work>> works;
  for (const nn::Buffer* buffer : group_.buffers())
    works.push_back(ranks_.shards.iall_gather(buffer->whole_compute, buffer->rounded()));
  return comm::join(std::move(works));
}

comm::Communicator* GroupExchange::copies(size_t buffer) const {
  switch (group_.buffers().at(buffer)->copies) {
    case nn::Copies::one:
      return nullptr;
    case nn::Copies::tp:
      return ranks_.tp_copies;
    case nn::Copies::kv:
      return ranks_.kv_copies;
  }
  throw Error("unknown copies");
}

bool GroupExchange::is_summed(size_t buffer) const {
  return ranks_.sum.size() > 1 || shared(copies(buffer));
}

at::Tensor GroupExchange::own_shard(size_t buffer) {
  const at::Tensor& whole = group_.buffers().at(buffer)->whole_grad;
  const int64_t size = whole.numel() / ranks_.shards.size();
  return whole.narrow(0, size * ranks_.shards.rank(), size);
}

// With R replicas, the r-th holder of a shard gets the r-th of R parts of that shard; then the holders
// exchange their parts.
GroupExchange::SumSteps GroupExchange::sum_steps(size_t buffer) {
  SumSteps steps;
  const at::Tensor whole = group_.buffers().at(buffer)->whole_grad;
  if (comm::Communicator* const ranks = copies(buffer); shared(ranks))
    steps[0] = [ranks, whole] { return ranks->iall_reduce_sum(whole); };
  const int shards = ranks_.shards.size();
  if (ranks_.sum.size() == 1) return steps;
  if (!is_sharded()) {
    steps[1] = [&ranks = ranks_.sum, whole] { return ranks.iall_reduce_sum(whole); };
    return steps;
  }
  const at::Tensor own = own_shard(buffer);
  const int me = ranks_.replicas.rank();
  const std::vector<int64_t> parts = even_counts(own.numel(), ranks_.replicas.size());
  const int64_t begin = std::accumulate(parts.begin(), parts.begin() + me, int64_t{0});
  const at::Tensor part = own.narrow(0, begin, parts[me]);
  std::vector<int64_t> counts(static_cast<size_t>(ranks_.sum.size()));
  std::vector<int> order;
  for (int shard = 0; shard < shards; ++shard) {
    for (int replica = 0; replica < ranks_.replicas.size(); ++replica) {
      order.push_back(rank_in_sum(shard, replica));
      counts[static_cast<size_t>(order.back())] = parts[static_cast<size_t>(replica)];
    }
  }
  steps[1] = [&sum = ranks_.sum, order, whole, part, counts] {
    return sum.ireduce_scatter_sum(part, whole, counts, order);
  };
  if (ranks_.replicas.size() > 1)
    steps[2] = [&ranks = ranks_.replicas, own, part, parts] { return ranks.iall_gather(own, part, parts); };
  return steps;
}

}  // namespace pptrain::shard
