#include "core/nn/tensor_group.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

namespace pptrain::nn {

ParameterSpec TensorShard::cut(ParameterSpec spec, int dim) const {
  if (alone()) return spec;
  const int64_t total = spec.shape.at(static_cast<size_t>(dim));
  spec.cut = Cut{.dim = dim, .begin = begin(total, rank), .size = count(total)};
  return spec;
}

ParameterSpec TensorShard::copied(ParameterSpec spec) const {
  if (alone()) return spec;
  spec.copies = Copies::tp;
  spec.counted = rank == 0;
  return spec;
}

namespace {

std::vector<int64_t> shares(const TensorShard& cut, int64_t rows) {
  std::vector<int64_t> result;
  for (int rank = 0; rank < cut.size; ++rank) result.push_back(cut.count(rows, rank));
  return result;
}

// An empty tensor with the type and trailing dims of `like`.
at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, like.options());
}

TensorGroup::Arriving arriving(at::Tensor tensor, TensorGroup::Wait wait) {
  return [tensor = std::move(tensor), wait = std::move(wait)]() mutable {
    if (wait) wait();
    return std::move(tensor);
  };
}

}  // namespace

TensorGroup::Wait TensorGroup::gather(at::Tensor all, const at::Tensor& own,
                                      std::span<const int64_t> /*rows*/) const {
  all.copy_(own);
  return [] {};
}

TensorGroup::Wait TensorGroup::sum(at::Tensor own, const at::Tensor& partial,
                                   std::span<const int64_t> /*rows*/) const {
  own.copy_(partial);
  return [] {};
}

TensorGroup::Arriving TensorGroup::begin_enter(const at::Tensor& own, int64_t rows) const {
  if (alone()) return arriving(own, {});
  at::Tensor all = empty_rows(own, rows);
  Wait wait = gather(all, own, shares(cut_, rows));
  return arriving(std::move(all), std::move(wait));
}

TensorGroup::Arriving TensorGroup::begin_leave(const at::Tensor& partial) const {
  if (alone()) return arriving(partial, {});
  at::Tensor own = empty_rows(partial, cut_.count(partial.size(0)));
  Wait wait = sum(own, partial, shares(cut_, partial.size(0)));
  return arriving(std::move(own), std::move(wait));
}

// The largest share decides how many chunks there are.
RowChunks::RowChunks(const TensorShard& cut, int64_t rows, int64_t step)
    : cut_(cut), rows_(rows), step_(std::max<int64_t>(step, 1)) {
  const int64_t largest = (rows + cut.size - 1) / cut.size;
  count_ = std::max<int64_t>(1, (largest + step_ - 1) / step_);
}

int64_t RowChunks::of_rank(int64_t chunk, int rank) const {
  return std::clamp<int64_t>(cut_.count(rows_, rank) - chunk * step_, 0, step_);
}

int64_t RowChunks::own_first(int64_t chunk) const {
  return std::min(chunk * step_, cut_.count(rows_));
}

std::vector<int64_t> RowChunks::rows(int64_t chunk) const {
  std::vector<int64_t> result;
  for (int rank = 0; rank < cut_.size; ++rank) result.push_back(of_rank(chunk, rank));
  return result;
}

int64_t RowChunks::total(int64_t chunk) const {
  int64_t sum = 0;
  for (int rank = 0; rank < cut_.size; ++rank) sum += of_rank(chunk, rank);
  return sum;
}

std::vector<ElementRun> RowChunks::pieces(int64_t chunk) const {
  std::vector<ElementRun> result;
  int64_t local = 0;
  for (int rank = 0; rank < cut_.size; ++rank) {
    const ElementRun piece{
        .global = cut_.begin(rows_, rank) + chunk * step_, .local = local, .length = of_rank(chunk, rank)};
    local += piece.length;
    if (piece.length == 0) continue;
    if (!result.empty() && result.back().global + result.back().length == piece.global) {
      result.back().length += piece.length;
    } else {
      result.push_back(piece);
    }
  }
  return result;
}

ChunkGather::ChunkGather(const TensorGroup& tp, const RowChunks& chunks, const at::Tensor& own)
    : tp_(tp), chunks_(chunks), own_(own) {
  begin(0);
}

void ChunkGather::begin(int64_t chunk) {
  const at::Tensor own = own_.narrow(0, chunks_.own_first(chunk), chunks_.own_rows(chunk));
  if (tp_.alone()) {
    arriving_ = arriving(own, {});
    return;
  }
  at::Tensor all = empty_rows(own_, chunks_.total(chunk));
  TensorGroup::Wait wait = tp_.gather(all, own, chunks_.rows(chunk));
  arriving_ = arriving(std::move(all), std::move(wait));
}

at::Tensor ChunkGather::next() {
  TensorGroup::Arriving current = std::move(arriving_);
  if (++next_ < chunks_.count()) begin(next_);
  return current();
}

ChunkSum::ChunkSum(const TensorGroup& tp, const RowChunks& chunks, at::Tensor own)
    : tp_(tp), chunks_(chunks), own_(std::move(own)) {}

void ChunkSum::add(const at::Tensor& partial) {
  TensorGroup::Wait& wait = waits_[next_ % 2];
  if (wait) wait();
  const int64_t chunk = next_++;
  wait = tp_.sum(own_.narrow(0, chunks_.own_first(chunk), chunks_.own_rows(chunk)), partial,
                 chunks_.rows(chunk));
}

void ChunkSum::wait() {
  for (TensorGroup::Wait& wait : waits_) {
    if (wait) wait();
    wait = {};
  }
}

}  // namespace pptrain::nn
