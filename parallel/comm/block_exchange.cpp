#include "parallel/comm/block_exchange.h"

#include <algorithm>
#include <span>
#include <utility>

namespace pptrain::comm {
namespace {

// [begin, end) from `after` on, around; without `after`.
std::vector<int> around(int begin, int end, int after) {
  std::vector<int> ranks;
  for (int rank = after + 1; rank < end; ++rank) ranks.push_back(rank);
  for (int rank = begin; rank < after; ++rank) ranks.push_back(rank);
  return ranks;
}

}  // namespace

Parcels exchange_with_all(int me, int ranks, const PartOf& outgoing, const PartOf& incoming) {
  Parcels parcels;
  for (int step = 1; step < ranks; ++step) {
    const int from = (me + ranks - step) % ranks, to = (me + step) % ranks;
    parcels.in.push_back({incoming(from), from});
    parcels.out.push_back({outgoing(to), to});
  }
  return parcels;
}

// a + b has the bits of b + a, so each term that contains `own` is kept there.
void sum_in_pairs(at::Tensor own, at::Tensor others, int me) {
  const int64_t terms = others.size(0);
  for (int64_t half = 1; half < terms; half *= 2) {
    for (int64_t left = 0; left + half < terms; left += 2 * half) {
      const int64_t right = left + half;
      if (me < left || me >= right + half) {
        others.select(0, left).add_(others.select(0, right));
      } else {
        own.add_(others.select(0, me < right ? right : left));
      }
    }
  }
}

BlockSum::BlockSum(const HostBlocks& blocks, int me, at::Tensor own, const PartOf& part, at::Tensor scratch)
    : blocks_(blocks),
      me_(me),
      block_(blocks.of(me)),
      first_(blocks.first(block_)),
      own_(std::move(own)),
      scratch_(std::move(scratch)) {
  plan_within(part);
  plan_between();
}

at::Tensor BlockSum::take(int rows, int64_t n) {
  const at::Tensor taken = scratch_.narrow(0, taken_, rows * n).view({rows, n});
  taken_ += rows * n;
  return taken;
}

// Relays receive the terms that they add up.
void BlockSum::plan_within(const PartOf& part) {
  const int ranks = blocks_.size(block_);
  const std::vector<int> others = around(first_, first_ + ranks, me_);
  for (const int r : blocks_.served_by(me_)) {
    Served to{.rank = r, .sum = r == me_ ? own_ : part(r), .rows = {}};
    if (ranks > 1 && to.sum.numel() > 0) {
      to.rows = take(ranks, to.sum.numel());
      if (r != me_) to.sum = to.rows.select(0, me_ - first_).copy_(to.sum, /*non_blocking=*/true);
      for (const int other : others) within_.in.push_back({to.rows.select(0, other - first_), other});
    }
    served_.push_back(std::move(to));
  }
  for (const int relay : others) {
    for (const int r : blocks_.served_by(relay)) within_.out.push_back({part(r), relay});
  }
}

void BlockSum::add_within() {
  for (const Served& to : served_) {
    if (to.rows.defined()) sum_in_pairs(to.sum, to.rows, me_ - first_);
  }
}

// Relays send their blocks' sums to the ranks whose parts they are.
void BlockSum::plan_between() {
  if (blocks_.count() > 1 && own_.numel() > 0) {
    of_blocks_ = take(blocks_.count(), own_.numel());
    for (const int block : around(0, blocks_.count(), block_))
      between_.in.push_back({of_blocks_.select(0, block), blocks_.relay(block, me_)});
  }
  std::ranges::rotate(served_, std::ranges::find(served_, me_, &Served::rank));
  for (const Served& to : std::span(served_).subspan(1)) between_.out.push_back({to.sum, to.rank});
}

void BlockSum::add_between() {
  if (of_blocks_.defined()) sum_in_pairs(own_, of_blocks_, block_);
}

BlockGather::BlockGather(const HostBlocks& blocks, int me, const PartOf& part) {
  const int block = blocks.of(me), first = blocks.first(block);
  const std::vector<int> served = blocks.served_by(me);
  for (const int r : served) {
    if (r != me) between.in.push_back({part(r), r});
  }
  for (const int other : around(0, blocks.count(), block))
    between.out.push_back({part(me), blocks.relay(other, me)});
  for (const int other : around(first, first + blocks.size(block), me)) {
    for (const int r : blocks.served_by(other)) within.in.push_back({part(r), other});
    for (const int r : served) within.out.push_back({part(r), other});
  }
}

}  // namespace pptrain::comm
