#include "parallel/pipeline/embedding_shards.h"

#include <memory>
#include <utility>
#include <vector>

#include "parallel/comm/links.h"

namespace pptrain::pipeline {
namespace {

constexpr int first_rank = 0;

// visit(rank's shard of the whole) for each other rank, on rank 0.
template <typename Visit>
void each_other(const comm::Communicator& pipeline, const at::Tensor& whole, const Visit& visit) {
  const int64_t size = whole.numel() / pipeline.size();
  for (int rank = first_rank + 1; rank < pipeline.size(); ++rank)
    visit(rank, whole.narrow(0, rank * size, size));
}

}  // namespace

nn::ShardPlace embedding_place(int rank, int ranks) {
  return {.index = rank, .count = ranks, .own_gradient = rank != first_rank, .of_pipeline = true};
}

void connect_embedding(comm::Communicator& pipeline) {
  comm::connect_with_one(pipeline, first_rank);
}

void gather_embedding(comm::Communicator& pipeline, nn::ParameterGroup& embedding) {
  std::vector<std::unique_ptr<comm::Work>> works;
  for (const nn::Buffer* buffer : embedding.buffers()) {
    if (pipeline.rank() != first_rank) {
      works.push_back(pipeline.isend(buffer->rounded(), first_rank));
      continue;
    }
    buffer->whole_compute.narrow(0, 0, buffer->rounded().numel()).copy_(buffer->rounded());
    each_other(pipeline, buffer->whole_compute,
               [&](int rank, at::Tensor shard) { works.push_back(pipeline.irecv(std::move(shard), rank)); });
  }
  comm::join(std::move(works))->wait([] { return "the embedding's weights"; });
}

void scatter_embedding_gradient(comm::Communicator& pipeline, nn::ParameterGroup& embedding) {
  std::vector<std::unique_ptr<comm::Work>> works;
  for (const nn::Buffer* buffer : embedding.buffers()) {
    if (pipeline.rank() != first_rank) {
      works.push_back(pipeline.irecv(buffer->grad, first_rank));
      continue;
    }
    each_other(pipeline, buffer->whole_grad,
               [&](int rank, const at::Tensor& shard) { works.push_back(pipeline.isend(shard, rank)); });
  }
  comm::join(std::move(works))->wait([] { return "the embedding's gradient"; });
}

}  // namespace pptrain::pipeline
