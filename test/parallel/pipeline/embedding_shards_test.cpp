#include "parallel/pipeline/embedding_shards.h"

#include <ATen/Context.h>

#include <mutex>

#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/nn/gradients.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;

// Two tables that no number of ranks divides into equal whole rows, and an optimizer's step on each shard.
TEST_CASE("an embedding in shards steps as a whole one does") {
  at::manual_seed(5);
  const auto declare = [](nn::ParameterGroup& group) {
    group.add({{.name = "embed.weight", .shape = {301, 11}, .role = nn::Role::embedding}});
    group.add({{.name = "embed_positions.weight", .shape = {50, 11}, .role = nn::Role::embedding}});
  };
  const auto step = [](nn::ParameterGroup& group) {
    for (const nn::Buffer* buffer : group.buffers()) buffer->master.sub_(buffer->grad, 0.1);
    group.refresh_compute();
  };
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    nn::ParameterGroup whole("embed");
    declare(whole);
    whole.materialise(at::kCPU, type);
    whole.initialise(3);
    const at::Tensor gradient = at::randn({whole.buffers().front()->whole_grad.numel()});
    const at::Tensor initial = whole.buffers().front()->whole_compute.clone();
    whole.buffers().front()->whole_grad.copy_(gradient);
    step(whole);
    for (const int ranks : {2, 3, 4}) {
      CAPTURE(c10::toString(type), ranks);
      std::mutex mutex;  // Catch's assertions are not for several threads at once
      comm::run_thread_ranks(ranks, [&](comm::Communicator& pipeline) {
        nn::ParameterGroup group("embed");
        declare(group);
        group.materialise(at::kCPU, type, true, pipeline::embedding_place(pipeline.rank(), ranks));
        pipeline::connect_embedding(pipeline);
        group.initialise(3);
        group.start_grad();
        const nn::Buffer& buffer = *group.buffers().front();
        const int64_t size = gradient.numel();  // beyond it are gaps
        if (pipeline.rank() == 0) {
          group.restore_whole_compute();
          buffer.whole_grad.narrow(0, 0, size).copy_(gradient);
        }
        pipeline::gather_embedding(pipeline, group);
        const bool starts_equal =
            pipeline.rank() != 0 || at::equal(buffer.whole_compute.narrow(0, 0, size), initial);
        pipeline::scatter_embedding_gradient(pipeline, group);
        step(group);
        pipeline::gather_embedding(pipeline, group);
        const std::lock_guard lock(mutex);
        CHECK(starts_equal);
        CHECK(buffer.master.numel() * ranks < size + 1024 * ranks + 1);
        if (pipeline.rank() > 0) {
          CHECK(test::whole_bytes(group) == 0);
        } else {
          CHECK(at::equal(buffer.whole_compute.narrow(0, 0, size), whole.buffers().front()->whole_compute));
        }
      });
    }
  }
}
