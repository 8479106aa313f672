#include "parallel/shard/matrix_exchange.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>

#include "core/base/error.h"

namespace pptrain::shard {
namespace {

using optim::MatrixPart;
using Items = std::vector<Transfer::Item>;

// A part that one rank holds, or several alike.
struct SharedPart {
  struct Holder {
    int rank = 0;
    size_t part = 0;  // its number of the part
  };
  nn::SliceShape shape;
  std::vector<Holder> holders;  // by rank
};

struct Matrix {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<SharedPart> parts;
  std::vector<int> holders;  // of any part; once for each part
  int owner = 0;
  size_t round = 0;

  int64_t numel() const { return shape[0] * shape[1]; }
  double cost() const {
    return static_cast<double>(numel()) * static_cast<double>(std::min(shape[0], shape[1]));
  }
};

bool overlap(const SharedPart& one, const SharedPart& other) {
  for (const Rectangle& a : rectangles(one.shape)) {
    for (const Rectangle& b : rectangles(other.shape)) {
      const bool rows = a.row < b.row + b.rows && b.row < a.row + a.rows;
      if (rows && a.col < b.col + b.cols && b.col < a.col + a.cols) return true;
    }
  }
  return false;
}

// Parts that do not overlap are the whole matrix if they have as many elements.
void check_whole(const Matrix& matrix) {
  int64_t elements = 0;
  for (size_t i = 0; i < matrix.parts.size(); ++i) {
    elements += matrix.parts[i].shape.numel();
    for (size_t j = 0; j < i; ++j) {
      if (overlap(matrix.parts[i], matrix.parts[j]))
        throw Error(fmt::format("{}: ranks hold parts of it that overlap, but are not equal", matrix.name));
    }
  }
  if (elements != matrix.numel()) {
    throw Error(
        fmt::format("{}: the ranks hold {} of its {} elements", matrix.name, elements, matrix.numel()));
  }
}

void add(Matrix& matrix, const MatrixPart& part, int rank, size_t number) {
  if (matrix.parts.empty()) {
    matrix.name = part.name;
    matrix.shape = part.shape.global;
  }
  if (part.shape.global.size() != 2 || part.shape.global != matrix.shape)
    throw Error(fmt::format("{}: ranks disagree on its shape, or it is no matrix", part.name));
  auto same = std::ranges::find(matrix.parts, part.shape, &SharedPart::shape);
  if (same == matrix.parts.end())
    same = matrix.parts.insert(same, SharedPart{.shape = part.shape, .holders = {}});
  same->holders.push_back({rank, number});
  matrix.holders.push_back(rank);
}

// Costliest first.
std::vector<Matrix> collect(std::span<const std::vector<MatrixPart>> parts) {
  std::map<std::string, Matrix> by_name;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    for (size_t i = 0; i < parts[rank].size(); ++i)
      add(by_name[parts[rank][i].name], parts[rank][i], static_cast<int>(rank), i);
  }
  std::vector<Matrix> matrices;
  for (auto& [name, matrix] : by_name) {
    check_whole(matrix);
    matrices.push_back(std::move(matrix));
  }
  std::ranges::stable_sort(matrices, std::ranges::greater(), &Matrix::cost);
  return matrices;
}

void assign(std::vector<Matrix>& matrices, size_t ranks, int64_t elements) {
  std::vector<double> load(ranks, 0.0);
  std::vector<int64_t> filled(ranks, 0);  // elements in the owner's round
  std::vector<size_t> round(ranks, 0);
  const auto load_and_rank = [&](int rank) { return std::pair(load[rank], rank); };
  for (Matrix& matrix : matrices) {
    const int owner = std::ranges::min(matrix.holders, {}, load_and_rank);
    load[owner] += matrix.cost();
    if (filled[owner] > 0 && filled[owner] + matrix.numel() > elements / static_cast<int64_t>(ranks)) {
      ++round[owner];
      filled[owner] = 0;
    }
    filled[owner] += matrix.numel();
    matrix.owner = owner;
    matrix.round = round[owner];
  }
}

// Adds to a rank's view of a round what it does with one part of a matrix, whose place in `owned` this is.
void add(MatrixRound& round, int rank, const Matrix& matrix, size_t place, const SharedPart& part) {
  const auto distance = [&](const auto& holder) { return std::abs(holder.rank - matrix.owner); };
  const int sender = std::ranges::min(part.holders, {}, distance).rank;
  const auto add_to = [&](Transfer& transfer, const SharedPart::Holder& holder) {
    if (holder.rank == rank) transfer.parts.push_back({matrix.owner, holder.part, part.shape});
    if (matrix.owner == rank) transfer.pieces.push_back({holder.rank, place, part.shape});
  };
  for (const SharedPart::Holder& holder : part.holders) {
    if (holder.rank == matrix.owner) {
      if (holder.rank == rank) round.at_home.emplace_back(holder.part, place);
      continue;
    }
    if (holder.rank == sender) add_to(round.in, holder);
    add_to(round.out, holder);
  }
}

// In the order of the matrices for each other rank.
void sort_by_rank(Transfer& transfer) {
  std::ranges::stable_sort(transfer.parts, {}, &Transfer::Item::rank);
  std::ranges::stable_sort(transfer.pieces, {}, &Transfer::Item::rank);
}

std::string write(const std::vector<optim::MatrixPart>& parts) {
  std::string text;
  for (const auto& [name, s] : parts) {
    text += fmt::format("{} {} {} {} {} {} {} {} {}\n", name, s.global.at(0), s.global.at(1), s.offset.at(0),
                        s.offset.at(1), s.box.at(0), s.box.at(1), s.begin, s.end);
  }
  return text;
}

std::vector<optim::MatrixPart> read(const std::string& text) {
  std::vector<optim::MatrixPart> parts;
  std::istringstream in(text);
  optim::MatrixPart part{.name = {}, .shape = {.global = {0, 0}, .offset = {0, 0}, .box = {0, 0}}};
  nn::SliceShape& s = part.shape;
  while (in >> part.name >> s.global[0] >> s.global[1] >> s.offset[0] >> s.offset[1] >> s.box[0] >>
         s.box[1] >> s.begin >> s.end)
    parts.push_back(part);
  return parts;
}

at::Tensor view_in(const at::Tensor& matrix, const Rectangle& r) {
  return matrix.narrow(0, r.row, r.rows).narrow(1, r.col, r.cols);
}
at::Tensor view_in_part(const at::Tensor& part, const Rectangle& r) {
  return part.narrow(0, r.local, r.rows * r.cols).view({r.rows, r.cols});
}

void put(const at::Tensor& part, const nn::SliceShape& shape, const at::Tensor& matrix) {
  for (const Rectangle& r : rectangles(shape)) view_in(matrix, r).copy_(view_in_part(part, r));
}
void take(const at::Tensor& matrix, const nn::SliceShape& shape, const at::Tensor& part) {
  for (const Rectangle& r : rectangles(shape)) view_in_part(part, r).copy_(view_in(matrix, r));
}

// Calls body(item, its elements of `message`) for one item after the other.
template <class Body>
void walk(const Items& items, const at::Tensor& message, const Body& body) {
  int64_t at = 0;
  for (const Transfer::Item& item : items) {
    at::Tensor elements = message.narrow(0, at, item.shape.numel());
    body(item, elements);
    at += elements.numel();
  }
}

// [rank] elements that the items have in its message.
std::vector<int64_t> counts(const Items& items, int ranks) {
  std::vector<int64_t> result(static_cast<size_t>(ranks));
  for (const Transfer::Item& item : items) result[static_cast<size_t>(item.rank)] += item.shape.numel();
  return result;
}

}  // namespace

std::vector<MatrixRound> plan_matrix_rounds(std::span<const std::vector<MatrixPart>> parts, int rank,
                                            int64_t elements) {
  std::vector<Matrix> matrices = collect(parts);
  assign(matrices, parts.size(), elements);
  std::vector<MatrixRound> rounds;
  for (const Matrix& matrix : matrices) {
    if (rounds.size() <= matrix.round) rounds.resize(matrix.round + 1);
    MatrixRound& round = rounds[matrix.round];
    const size_t place = round.owned.size();
    if (matrix.owner == rank) round.owned.push_back(matrix.shape);
    for (const SharedPart& part : matrix.parts) add(round, rank, matrix, place, part);
  }
  for (MatrixRound& round : rounds) {
    sort_by_rank(round.in);
    sort_by_rank(round.out);
  }
  return rounds;
}

std::vector<Rectangle> rectangles(const nn::SliceShape& shape) {
  const int64_t width = shape.box[1];
  std::vector<Rectangle> result;
  for (int64_t at = shape.begin; at < shape.end;) {
    const int64_t left = shape.end - at, col = at % width;
    const bool full_rows = col == 0 && left >= width;
    const int64_t rows = full_rows ? left / width : 1;
    const int64_t cols = full_rows ? width : std::min(left, width - col);
    result.push_back({.row = shape.offset[0] + at / width,
                      .col = shape.offset[1] + col,
                      .rows = rows,
                      .cols = cols,
                      .local = at - shape.begin});
    at += rows * cols;
  }
  return result;
}

namespace {

// A transfer under way: the message to this rank.
struct Flight {
  at::Tensor received;
  std::unique_ptr<comm::Work> work;
};

// One run of the exchange.
class Run {
 public:
  Run(comm::Communicator& ranks, const std::vector<MatrixPart>& parts, const at::TensorOptions& options,
      const optim::MatrixOperation& operation)
      : ranks_(ranks), parts_(parts), options_(options), operation_(operation) {}

  void walk_rounds(const std::vector<MatrixRound>& rounds) const;

 private:
  Flight send_operands(const MatrixRound& round) const;
  std::vector<at::Tensor> make_whole(const MatrixRound& round, Flight flight) const;
  Flight send_results(const MatrixRound& round, const std::vector<at::Tensor>& results) const;
  void take_results(const MatrixRound& round, Flight flight) const;
  at::Tensor empty(int64_t elements) const { return at::empty({elements}, options_); }
  at::Tensor message(const Items& items) const;

  // fill(item, its elements of the message from this rank).
  template <class Fill>
  Flight start(const Items& sent, const Items& received, const Fill& fill) const {
    const at::Tensor message_from_here = message(sent);
    walk(sent, message_from_here, fill);
    Flight flight{.received = message(received), .work = {}};
    flight.work = ranks_.iall_to_all(flight.received, counts(received, ranks_.size()), message_from_here,
                                     counts(sent, ranks_.size()));
    return flight;
  }
  // use(item, its elements).
  template <class Use>
  static void finish(const Flight& flight, const Items& received, const Use& use) {
    flight.work->wait([] { return "whole matrices of the optimizer"; });
    walk(received, flight.received, use);
  }

  comm::Communicator& ranks_;
  const std::vector<MatrixPart>& parts_;
  const at::TensorOptions& options_;
  const optim::MatrixOperation& operation_;
};

at::Tensor Run::message(const Items& items) const {
  const std::vector<int64_t> elements = counts(items, ranks_.size());
  return empty(std::accumulate(elements.begin(), elements.end(), int64_t{0}));
}

void Run::walk_rounds(const std::vector<MatrixRound>& rounds) const {
  Flight operands, results;
  if (!rounds.empty()) operands = send_operands(rounds.front());
  for (size_t i = 0; i < rounds.size(); ++i) {
    Flight next = i + 1 < rounds.size() ? send_operands(rounds[i + 1]) : Flight();
    std::vector<at::Tensor> matrices = make_whole(rounds[i], std::exchange(operands, std::move(next)));
    for (at::Tensor& matrix : matrices) matrix = operation_.transform(std::move(matrix));
    if (i > 0) take_results(rounds[i - 1], std::move(results));
    results = send_results(rounds[i], matrices);
  }
  if (!rounds.empty()) take_results(rounds.back(), std::move(results));
}

Flight Run::send_operands(const MatrixRound& round) const {
  return start(round.in.parts, round.in.pieces, [&](const Transfer::Item& part, at::Tensor& elements) {
    operation_.read(part.index, elements);
  });
}

// Each matrix has memory of its own, so that GEMMs see the same alignment (and give the same bits) on
// whichever rank it is made whole.
std::vector<at::Tensor> Run::make_whole(const MatrixRound& round, Flight flight) const {
  std::vector<at::Tensor> matrices;
  for (const auto& shape : round.owned) matrices.push_back(at::empty(shape, options_));
  for (const auto& [part, matrix] : round.at_home) {
    const nn::SliceShape& shape = parts_[part].shape;
    at::Tensor elements = shape.is_whole() ? matrices[matrix].view({-1}) : empty(shape.numel());
    operation_.read(part, elements);
    if (!shape.is_whole()) put(elements, shape, matrices[matrix]);
  }
  finish(flight, round.in.pieces, [&](const Transfer::Item& piece, const at::Tensor& elements) {
    put(elements, piece.shape, matrices[piece.index]);
  });
  return matrices;
}

Flight Run::send_results(const MatrixRound& round, const std::vector<at::Tensor>& results) const {
  Flight flight =
      start(round.out.pieces, round.out.parts, [&](const Transfer::Item& piece, const at::Tensor& elements) {
        take(results[piece.index], piece.shape, elements);
      });
  for (const auto& [part, matrix] : round.at_home) {
    const nn::SliceShape& shape = parts_[part].shape;
    const at::Tensor elements = shape.is_whole() ? results[matrix].view({-1}) : empty(shape.numel());
    if (!shape.is_whole()) take(results[matrix], shape, elements);
    operation_.write(part, elements);
  }
  return flight;
}

void Run::take_results(const MatrixRound& round, Flight flight) const {
  finish(flight, round.out.parts, [&](const Transfer::Item& part, const at::Tensor& elements) {
    operation_.write(part.index, elements);
  });
}

}  // namespace

optim::MatrixExchange make_matrix_exchange(comm::Communicator& ranks, std::vector<optim::MatrixPart> parts,
                                           int64_t elements) {
  const std::string own = write(parts);
  std::vector<std::vector<optim::MatrixPart>> all;
  for (int rank = 0; rank < ranks.size(); ++rank)
    all.push_back(read(comm::broadcast_string(ranks, own, rank)));
  return [&ranks, parts = std::move(parts), rounds = plan_matrix_rounds(all, ranks.rank(), elements)](
             const at::TensorOptions& options, const optim::MatrixOperation& operation) {
    Run(ranks, parts, options, operation).walk_rounds(rounds);
  };
}

}  // namespace pptrain::shard
