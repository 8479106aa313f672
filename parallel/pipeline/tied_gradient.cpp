#include "parallel/pipeline/tied_gradient.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "core/nn/parameter.h"
#include "parallel/comm/links.h"

namespace pptrain::pipeline {
namespace {

using nn::ElementRun;

at::Tensor of(const at::Tensor& embedding, const ElementRun& run) {
  return embedding.narrow(0, run.global, run.length);
}

// The elements of one owner's shard of a part.
ElementRun shard_of(const ElementRun& part, int owner, int owners) {
  const int64_t size = nn::shard_elements(part.length, owners), begin = std::min(owner * size, part.length);
  return {.global = part.global + begin, .local = 0, .length = std::min(size, part.length - begin)};
}

// Does every owner's shard of the embedding, of `size` elements, hold those of its shards of the parts?
bool shards_match(std::span<const ElementRun> parts, int owners, int64_t size) {
  for (const ElementRun& part : parts) {
    for (int owner = 0; owner < owners; ++owner) {
      const auto [begin, local, length] = shard_of(part, owner, owners);
      if (length > 0 && (begin < owner * size || begin + length > (owner + 1) * size)) return false;
    }
  }
  return true;
}

// own += the other rank's gradient of the same elements.
void add_others(comm::Communicator& pipeline, int other, at::Tensor own) {
  const at::Tensor received = at::empty_like(own);
  const auto receive = pipeline.irecv(received, other), send = pipeline.isend(own, other);
  receive->wait([] { return "tied embedding gradient"; });
  send->wait([] { return "tied embedding gradient"; });
  own.add_(received);  // a + b and b + a are the same bits
}

// runs: [rank] those of the first rank's `embedding` whose gradient the rank's `head` begins with.
void sum_over_pipeline(comm::Communicator& pipeline, int first_rank, const at::Tensor& embedding,
                       const at::Tensor& head, std::span<const ElementRun> runs) {
  const int me = pipeline.rank();
  for (int rank = 0; rank < pipeline.size(); ++rank) {
    const ElementRun& run = runs[static_cast<size_t>(rank)];
    if (run.length == 0) continue;
    if (me == first_rank && rank != me) add_others(pipeline, rank, of(embedding, run));
    if (rank != me) continue;
    at::Tensor own = head.narrow(0, 0, run.length);
    if (me == first_rank) {
      own.copy_(of(embedding, run).add_(own));
    } else {
      add_others(pipeline, first_rank, own);
    }
  }
}

}  // namespace

// Each rank of `shards` sums the elements that its own shards of the head's parts have. If the embedding is
// sharded differently, its gradient is made whole for that, and the sums are gathered.
void sum_tied_gradients(comm::Communicator& pipeline, comm::Communicator& shards, int first_rank,
                        at::Tensor embedding, const at::Tensor& head, std::span<const ElementRun> parts) {
  const int owner = shards.rank(), owners = shards.size();
  std::vector<ElementRun> own;
  for (const ElementRun& part : parts) own.push_back(shard_of(part, owner, owners));
  if (pipeline.rank() != first_rank) return sum_over_pipeline(pipeline, first_rank, {}, head, own);
  const int64_t size = embedding.numel();
  if (shards_match(parts, owners, size)) {
    for (ElementRun& run : own) run.global -= owner * size;
    return sum_over_pipeline(pipeline, first_rank, embedding, head, own);
  }
  const at::Tensor whole = at::empty({owners * size}, embedding.options());
  shards.iall_gather(whole, embedding)->wait();
  sum_over_pipeline(pipeline, first_rank, whole, head, own);
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    std::vector<int64_t> counts;
    for (int i = 0; i < owners; ++i) counts.push_back(shard_of(parts[rank], i, owners).length);
    shards.iall_gather(of(whole, parts[rank]), of(whole, own[rank]), counts)->wait();
  }
  embedding.copy_(whole.narrow(0, owner * size, size));
}

void connect_tied(comm::Communicator& pipeline, int first_rank, std::span<const nn::ElementRun> parts) {
  comm::connect_with_one(pipeline, first_rank,
                         [&](int rank) { return parts[static_cast<size_t>(rank)].length > 0; });
}

}  // namespace pptrain::pipeline
