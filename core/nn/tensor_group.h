// What a rank does with its tokens before the GEMMs of attention and feed-forward, and with their results.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/nn/parameter.h"

namespace pptrain::nn {

// --- How tensor-parallel ranks shard parameters and rows.

// Rank `rank` of `size` ranks that shard what a single rank would hold whole.
struct TensorShard {
  int rank = 0;
  int size = 1;

  bool alone() const { return size == 1; }

  // Rank r has the indices [begin(total, r), begin(total, r + 1)) of `total`: shares differ by one at most.
  int64_t begin(int64_t total, int r) const { return total * r / size; }
  int64_t count(int64_t total, int r) const { return begin(total, r + 1) - begin(total, r); }
  int64_t count(int64_t total) const { return count(total, rank); }

  // The parameter of which this rank has its shard of dim `dim`.
  ParameterSpec cut(ParameterSpec spec, int dim) const;
  // The parameter that every rank holds whole, each with a part of its gradient; rank 0 counts it.
  ParameterSpec copied(ParameterSpec spec) const;

  friend bool operator==(const TensorShard&, const TensorShard&) = default;
};

// The tensor-parallel group of a stage, as its layers see it. Between layers a rank holds its shard of
// a microbatch's rows (TensorShard). Inside it holds all rows and its share of the heads, of the inner width
// or of the vocabulary. Entering gathers rows, leaving sums over ranks and scatters rows (sequence
// parallelism: Korthikanti et al., arXiv 2205.05198). The base class is the group of a single rank, which has
// all rows and heads.
//
// The exchanges go on while the rank computes. All ranks of a group begin the same ones in the same order.
class TensorGroup {
 public:
  // Waits for the end of an exchange.
  using Wait = std::function<void()>;

  TensorGroup() = default;
  explicit TensorGroup(const TensorShard& cut) : cut_(cut) {}
  virtual ~TensorGroup() = default;

  const TensorShard& cut() const { return cut_; }
  bool alone() const { return cut_.alone(); }

  // Begins: all = the rows of every rank, by rank. own: [rows[this rank], ...]; all: [sum of rows, ...], both
  // contiguous and in use until the wait has returned.
  virtual Wait gather(at::Tensor all, const at::Tensor& own, std::span<const int64_t> rows) const;
  // Begins: own = this rank's rows of the sum of `partial` over ranks. Shapes as in gather.
  virtual Wait sum(at::Tensor own, const at::Tensor& partial, std::span<const int64_t> rows) const;

  // A tensor that an exchange fills: called once, it waits and gives the tensor.
  using Arriving = std::function<at::Tensor()>;

  // The same for whole lists of rows, sharded by the cut. own: [share of `rows`, ...] -> [rows, ...]; a
  // single rank gets `own` itself.
  Arriving begin_enter(const at::Tensor& own, int64_t rows) const;
  at::Tensor enter(const at::Tensor& own, int64_t rows) const { return begin_enter(own, rows)(); }
  // partial: [rows, ...] -> [share, ...]; a single rank gets `partial` itself.
  Arriving begin_leave(const at::Tensor& partial) const;
  at::Tensor leave(const at::Tensor& partial) const { return begin_leave(partial)(); }

 private:
  TensorShard cut_;
};

// A list of rows that ranks shard, in chunks: chunk c has the c-th piece of every rank's share, by rank, so
// that each rank sends and receives as much in every exchange.
class RowChunks {
 public:
  // At most `step` rows of each rank in a chunk.
  RowChunks(const TensorShard& cut, int64_t rows, int64_t step);

  int64_t count() const { return count_; }
  std::vector<int64_t> rows(int64_t chunk) const;  // of each rank
  int64_t total(int64_t chunk) const;              // their sum

  // Rows that follow each other both in the whole list (global) and in the chunk (local).
  std::vector<ElementRun> pieces(int64_t chunk) const;

  // This rank's piece: where it begins in its share, and its rows.
  int64_t own_first(int64_t chunk) const;
  int64_t own_rows(int64_t chunk) const { return of_rank(chunk, cut_.rank); }

 private:
  int64_t of_rank(int64_t chunk, int rank) const;

  TensorShard cut_;
  int64_t rows_, step_, count_;
};

// Gathers the chunks of a list in turn, each while the one before is used.
class ChunkGather {
 public:
  // own: [share, ...], contiguous.
  ChunkGather(const TensorGroup& tp, const RowChunks& chunks, const at::Tensor& own);
  // The next chunk's rows, [total(chunk), ...]; on a single rank a view of `own`.
  at::Tensor next();

 private:
  void begin(int64_t chunk);

  const TensorGroup& tp_;
  const RowChunks& chunks_;
  at::Tensor own_;
  int64_t next_ = 0;
  TensorGroup::Arriving arriving_;
};

// Sums chunks and scatters this rank's rows of each; up to two chunks overlap with the computation of others.
class ChunkSum {
 public:
  // own: [share, ...], contiguous; what is summed goes there.
  ChunkSum(const TensorGroup& tp, const RowChunks& chunks, at::Tensor own);
  // Chunks in turn; partial: [total(chunk), ...].
  void add(const at::Tensor& partial);
  void wait();  // until all are there

 private:
  const TensorGroup& tp_;
  const RowChunks& chunks_;
  at::Tensor own_;
  int64_t next_ = 0;
  TensorGroup::Wait waits_[2];
};

}  // namespace pptrain::nn
