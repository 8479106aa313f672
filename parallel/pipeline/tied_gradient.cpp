#include "parallel/pipeline/tied_gradient.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/nn/parameter.h"
#include "parallel/comm/links.h"

namespace pptrain::pipeline {
namespace {

// Sums gradients of the same elements, which lie on two ranks of the pipeline or on one.
void sum_pair(comm::Communicator& pipeline, int first_rank, int head_rank, at::Tensor embedding,
              at::Tensor head) {
  if (first_rank == head_rank) {
    if (pipeline.rank() != first_rank) return;
    embedding.add_(head);
    head.copy_(embedding);
    return;
  }
  if (pipeline.rank() != first_rank && pipeline.rank() != head_rank) return;
  const bool first = pipeline.rank() == first_rank;
  const int other = first ? head_rank : first_rank;
  at::Tensor own = first ? embedding : head;
  at::Tensor received = at::empty_like(own);
  auto receive = pipeline.irecv(received, other);
  auto send = pipeline.isend(own, other);
  receive->wait([] { return "tied embedding gradient"; });
  send->wait([] { return "tied embedding gradient"; });
  own.add_(received);  // a + b and b + a are the same bits
}

}  // namespace

// Each rank of `pieces` sums the elements that its own shards of the head's parts have. If the embedding is
// sharded differently, its gradient is made whole for that, and the sums are gathered.
void sum_tied_gradients(comm::Communicator& pipeline, comm::Communicator& pieces, int first_rank,
                        const at::Tensor& embedding, const at::Tensor& head,
                        std::span<const std::pair<int64_t, int64_t>> parts) {
  const bool first = pipeline.rank() == first_rank;
  const auto shard = [&](size_t rank) { return nn::shard_elements(parts[rank].second, pieces.size()); };
  // Of the owner's shard of a part: its begin in the part, and the number of its elements that are no gap.
  const auto piece = [&](size_t rank, int owner) {
    const int64_t elements = parts[rank].second, begin = std::min(owner * shard(rank), elements);
    return std::pair(begin, std::min(shard(rank), elements - begin));
  };
  const auto has_part = [](const auto& part) { return part.second > 0; };
  const auto head_rank = static_cast<size_t>(std::ranges::find_if(parts, has_part) - parts.begin());
  const bool whole_head = std::ranges::count_if(parts, has_part) == 1;
  const bool alike = pieces.size() == 1 || (first && whole_head && shard(head_rank) == embedding.numel());
  at::Tensor whole = embedding;
  if (first && !alike) {
    whole = at::empty({pieces.size(), embedding.numel()}, embedding.options());
    pieces.all_gather(whole, embedding);
    whole = whole.flatten();
  }
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const auto [begin, count] = piece(rank, pieces.rank());
    if (count == 0) continue;
    const int64_t place = alike && pieces.size() > 1 ? 0 : parts[rank].first + begin;
    const int other = static_cast<int>(rank);
    sum_pair(pipeline, first_rank, other, first ? whole.narrow(0, place, count) : at::Tensor(),
             pipeline.rank() == other ? head.narrow(0, 0, count) : at::Tensor());
  }
  if (!first || alike) return;
  const auto each_piece = [&](int owner, const at::Tensor& sums, const auto& visit) {
    int64_t at = 0;
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      const auto [begin, count] = piece(rank, owner);
      visit(whole.narrow(0, parts[rank].first + begin, count), sums.narrow(0, at, count));
      at += shard(rank);
    }
  };
  int64_t size = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) size += shard(rank);
  const at::Tensor own = at::zeros({size}, embedding.options());
  const at::Tensor all = at::empty({pieces.size(), size}, embedding.options());
  each_piece(pieces.rank(), own, [](const at::Tensor& from, at::Tensor to) { to.copy_(from); });
  pieces.all_gather(all, own);
  for (int owner = 0; owner < pieces.size(); ++owner)
    each_piece(owner, all[owner], [](at::Tensor to, const at::Tensor& from) { to.copy_(from); });
  at::Tensor result = embedding;
  result.copy_(whole.narrow(0, pieces.rank() * embedding.numel(), embedding.numel()));
}

void connect_tied(comm::Communicator& pipeline, int first_rank,
                  std::span<const std::pair<int64_t, int64_t>> parts) {
  comm::connect_with_one(pipeline, first_rank,
                         [&](int rank) { return parts[static_cast<size_t>(rank)].second > 0; });
}

}  // namespace pptrain::pipeline
