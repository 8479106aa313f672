// What ranks send each other for a sum or a gather in the two steps of HostBlocks. Transports move the
// parcels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/comm/host_blocks.h"

namespace pptrain::comm {

// A flat tensor that travels to or from a rank.
struct Parcel {
  at::Tensor tensor;
  int peer;
};

// Of one rank. Several to one peer travel in their order; empty ones need not travel.
struct Parcels {
  std::vector<Parcel> in, out;
};

using PartOf = std::function<at::Tensor(int rank)>;

// What rank `me` of `ranks` exchanges with each other one: outgoing(r) goes to rank r, incoming(r) comes from
// it. Every rank begins with another peer.
Parcels exchange_with_all(int me, int ranks, const PartOf& outgoing, const PartOf& incoming);

// own <- ((x0 + x1) + (x2 + x3)) + ..., where x_me is `own` [n], and the others are the rows of `others`
// [terms, n], which is scratch afterwards; its row `me` is not read. On the tensors' device.
void sum_in_pairs(at::Tensor own, at::Tensor others, int me);

// A sum of which each rank gets its part. The parcels of within() move first, then those of between(). Two
// ranks exchange in one of the steps alone.
class BlockSum {
 public:
  // own: this rank's part, which becomes the sum; part(r): what this rank adds to the part of another rank.
  // scratch: flat, HostBlocks::most_rows() times the longest part.
  BlockSum(const HostBlocks& blocks, int me, at::Tensor own, const PartOf& part, at::Tensor scratch);

  const Parcels& within() const { return within_; }
  void add_within();  // once they have moved
  const Parcels& between() const { return between_; }
  void add_between();

 private:
  struct Served {
    int rank;
    at::Tensor sum;   // of the block's terms
    at::Tensor rows;  // [ranks of the block, n]; undefined if there is nothing to add
  };

  at::Tensor take(int rows, int64_t n);  // off the scratch; [rows, n]
  void plan_within(const PartOf& part);
  void plan_between();

  HostBlocks blocks_;
  int me_, block_, first_;  // this rank, its block, the block's first rank
  at::Tensor own_, scratch_;
  int64_t taken_ = 0;
  std::vector<Served> served_;
  at::Tensor of_blocks_;  // [blocks, n]: their sums of this rank's part
  Parcels within_, between_;
};

// A gather of which part(r) is rank r's. The parcels of `between` move first, then those of `within`.
struct BlockGather {
  Parcels between, within;

  BlockGather(const HostBlocks& blocks, int me, const PartOf& part);
};

}  // namespace pptrain::comm
