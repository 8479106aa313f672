#include "parallel/pipeline/tied_gradient.h"

#include <ATen/Context.h>

#include <mutex>
#include <tuple>
#include <vector>

#include "core/nn/parameter.h"
#include "core/nn/tensor_group.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;

// The head is on one pipeline rank or spread; the embedding's group has another weight behind it or not.
TEST_CASE("both uses of a tied weight end with the same sum, on every layout") {
  at::manual_seed(5);
  constexpr int64_t rows = 301, columns = 11, others = 700;
  for (const auto& [p, shards, spread, behind] :
       {std::tuple(1, 1, false, false), std::tuple(2, 1, false, true), std::tuple(3, 1, true, false),
        std::tuple(1, 2, true, true), std::tuple(2, 2, false, false), std::tuple(2, 2, false, true),
        std::tuple(2, 3, true, false), std::tuple(4, 2, true, true)}) {
    CAPTURE(p, shards, spread, behind);
    const at::Tensor embedding = at::randn({rows * columns}), head = at::randn({rows * columns});
    const at::Tensor sum = at::add(embedding, head), more = at::randn({behind ? others : 0});
    std::vector<nn::ElementRun> parts(static_cast<size_t>(p));
    if (!spread) parts.back().length = rows * columns;
    for (int rank = 0; spread && rank < p; ++rank) {
      const nn::TensorShard part{.rank = rank, .size = p};
      parts[static_cast<size_t>(rank)] = {
          .global = part.begin(rows, rank) * columns, .local = 0, .length = part.count(rows) * columns};
    }
    // The rank's shard of a buffer of these values.
    const auto shard_of = [shards = shards](const at::Tensor& values, int owner) {
      const int64_t size = nn::shard_elements(values.numel(), shards);
      const at::Tensor whole = at::zeros({size * shards});
      whole.narrow(0, 0, values.numel()).copy_(values);
      return whole.narrow(0, owner * size, size).clone();
    };
    std::mutex mutex;
    comm::run_thread_ranks(p * shards, [&, p = p, shards = shards](comm::Communicator& world) {
      const int stage = world.rank() / shards, owner = world.rank() % shards;
      std::vector<int> column, row;
      for (int i = 0; i < p; ++i) column.push_back(i * shards + owner);
      for (int i = 0; i < shards; ++i) row.push_back(stage * shards + i);
      const auto pipeline = world.subgroup(column), group = world.subgroup(row);
      const auto [begin, local, count] = parts[static_cast<size_t>(stage)];
      at::Tensor mine_embedding, mine_head;
      if (stage == 0) mine_embedding = shard_of(test::cat({embedding, more}), owner);
      if (count > 0) mine_head = shard_of(head.narrow(0, begin, count), owner);
      pipeline::sum_tied_gradients(*pipeline, *group, 0, mine_embedding, mine_head, parts);
      const std::lock_guard lock(mutex);
      if (stage == 0) CHECK(at::equal(mine_embedding, shard_of(test::cat({sum, more}), owner)));
      if (count > 0) CHECK(at::equal(mine_head, shard_of(sum.narrow(0, begin, count), owner)));
    });
  }
}
