#include "parallel/pipeline/tied_gradient.h"

#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <mutex>

#include "parallel/comm/thread/thread_communicator.h"
#include "test/support/catch.h"

using namespace pptrain;

TEST_CASE("both uses of a tied weight end with the same sum, on every layout") {
  at::manual_seed(5);
  const at::Tensor embedding = at::randn({7, 5}), head = at::randn({7, 5});
  const at::Tensor sum = at::add(embedding, head);
  std::mutex mutex;
  for (int p = 1; p <= 3; ++p) {
    comm::run_thread_ranks(p, [&](comm::Communicator& world) {
      at::Tensor mine_embedding, mine_head;
      if (world.rank() == 0) mine_embedding = embedding.clone();
      if (world.rank() == p - 1) mine_head = head.clone();
      pipeline::sum_tied_gradient(world, 0, p - 1, mine_embedding, mine_head);
      const std::lock_guard lock(mutex);
      if (mine_embedding.defined()) CHECK(at::equal(mine_embedding, sum));
      if (mine_head.defined()) CHECK(at::equal(mine_head, sum));
    });
  }
}
