#include "parallel/shard/matrix_exchange.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "core/base/error.h"

namespace pptrain::shard {
namespace {

using optim::MatrixPart;

// A part that one rank holds, or several alike.
struct SharedPart {
  nn::SliceShape shape;
  std::vector<std::pair<int, size_t>> holders;  // rank, and its number of the part; ascending
};

struct Matrix {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<SharedPart> parts;
  int owner = 0;
  size_t round = 0;

  int64_t numel() const { return shape[0] * shape[1]; }
  double cost() const {
    return static_cast<double>(numel()) * static_cast<double>(std::min(shape[0], shape[1]));
  }
};

bool overlap(const Rectangle& a, const Rectangle& b) {
  return a.row < b.row + b.rows && b.row < a.row + a.rows && a.col < b.col + b.cols && b.col < a.col + a.cols;
}

bool overlap(const SharedPart& a, const SharedPart& b) {
  for (const Rectangle& x : rectangles(a.shape)) {
    for (const Rectangle& y : rectangles(b.shape)) {
      if (overlap(x, y)) return true;
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
  same->holders.emplace_back(rank, number);
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
  for (Matrix& matrix : matrices) {
    matrix.owner = matrix.parts.front().holders.front().first;
    for (const SharedPart& part : matrix.parts) {
      for (const auto& [rank, number] : part.holders) {
        const std::pair here(load[rank], rank), best(load[matrix.owner], matrix.owner);
        if (here < best) matrix.owner = rank;
      }
    }
    const int owner = matrix.owner;
    load[owner] += matrix.cost();
    if (filled[owner] > 0 && filled[owner] + matrix.numel() > elements / static_cast<int64_t>(ranks)) {
      ++round[owner];
      filled[owner] = 0;
    }
    filled[owner] += matrix.numel();
    matrix.round = round[owner];
  }
}

// The data between one rank and each other rank, before it is put in message order.
class TransferBuilder {
 public:
  explicit TransferBuilder(size_t ranks) : parts_(ranks), pieces_(ranks) {
    transfer_.part_counts.resize(ranks, 0);
    transfer_.piece_counts.resize(ranks, 0);
  }

  void add_part(int owner, size_t part, int64_t elements) {
    parts_[owner].push_back(part);
    transfer_.part_counts[owner] += elements;
  }
  void add_piece(int holder, size_t matrix, const nn::SliceShape& shape) {
    pieces_[holder].push_back({matrix, shape});
    transfer_.piece_counts[holder] += shape.numel();
  }

  Transfer build() {
    for (const auto& list : parts_) transfer_.parts.insert(transfer_.parts.end(), list.begin(), list.end());
    for (const auto& list : pieces_)
      transfer_.pieces.insert(transfer_.pieces.end(), list.begin(), list.end());
    return std::move(transfer_);
  }

 private:
  Transfer transfer_;
  std::vector<std::vector<size_t>> parts_;            // [owner]
  std::vector<std::vector<Transfer::Piece>> pieces_;  // [holder]
};

// One rank's view of a round, matrix by matrix.
class RoundBuilder {
 public:
  RoundBuilder(size_t ranks, int rank) : rank_(rank), in_(ranks), out_(ranks) {}

  void add(const Matrix& matrix) {
    const size_t place = round_.owned.size();
    if (matrix.owner == rank_) round_.owned.push_back(matrix.shape);
    for (const SharedPart& part : matrix.parts) {
      const auto distance = [&](const auto& holder) { return std::abs(holder.first - matrix.owner); };
      const int sender = std::ranges::min(part.holders, {}, distance).first;
      for (const auto& [holder, number] : part.holders) {
        if (holder == matrix.owner) {
          if (holder == rank_) round_.at_home.emplace_back(number, place);
          continue;
        }
        if (holder == sender) add_to(in_, matrix, place, part, holder, number);
        add_to(out_, matrix, place, part, holder, number);
      }
    }
  }

  MatrixRound build() {
    round_.in = in_.build();
    round_.out = out_.build();
    return std::move(round_);
  }

 private:
  void add_to(TransferBuilder& transfer, const Matrix& matrix, size_t place, const SharedPart& part,
              int holder, size_t number) {
    if (holder == rank_) transfer.add_part(matrix.owner, number, part.shape.numel());
    if (matrix.owner == rank_) transfer.add_piece(holder, place, part.shape);
  }

  int rank_;
  MatrixRound round_;
  TransferBuilder in_, out_;
};

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

// Calls body(item, its elements of `message`) for parts or pieces one after the other.
template <class Items, class Size, class Body>
void walk(const Items& items, const at::Tensor& message, const Size& size, const Body& body) {
  int64_t at = 0;
  for (const auto& item : items) {
    at::Tensor elements = message.narrow(0, at, size(item));
    body(item, elements);
    at += elements.numel();
  }
}

int64_t size_of(const Transfer::Piece& piece) {
  return piece.shape.numel();
}

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::string waiting() {
  return "whole matrices of the optimizer";
}

}  // namespace

std::vector<MatrixRound> plan_matrix_rounds(std::span<const std::vector<MatrixPart>> parts, int rank,
                                            int64_t elements) {
  std::vector<Matrix> matrices = collect(parts);
  assign(matrices, parts.size(), elements);
  std::vector<RoundBuilder> rounds;
  for (const Matrix& matrix : matrices) {
    while (rounds.size() <= matrix.round) rounds.emplace_back(parts.size(), rank);
    rounds[matrix.round].add(matrix);
  }
  std::vector<MatrixRound> result;
  for (RoundBuilder& round : rounds) result.push_back(round.build());
  return result;
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

class Exchange {
 public:
  Exchange(comm::Communicator& ranks, std::vector<optim::MatrixPart> parts, int64_t elements);

  void run(const at::TensorOptions& options, const optim::MatrixOperation& operation);

 private:
  // A transfer under way: the messages to and from parts and pieces.
  struct Flight {
    at::Tensor parts, pieces;
    std::unique_ptr<comm::Work> work;
  };
  Flight send_operands(const MatrixRound& round, const optim::MatrixOperation& operation);
  std::vector<at::Tensor> make_whole(const MatrixRound& round, Flight flight,
                                     const optim::MatrixOperation& operation);
  Flight send_results(const MatrixRound& round, const std::vector<at::Tensor>& results,
                      const optim::MatrixOperation& operation);
  void take_results(const MatrixRound& round, Flight flight, const optim::MatrixOperation& operation);
  Flight messages(const Transfer& transfer) const;
  at::Tensor empty(int64_t elements) const;

  comm::Communicator& ranks_;
  std::vector<optim::MatrixPart> parts_;
  std::vector<MatrixRound> rounds_;
  at::TensorOptions options_;  // of the run under way
};

Exchange::Exchange(comm::Communicator& ranks, std::vector<optim::MatrixPart> parts, int64_t elements)
    : ranks_(ranks), parts_(std::move(parts)) {
  const std::string own = write(parts_);
  std::vector<std::vector<optim::MatrixPart>> all;
  for (int rank = 0; rank < ranks.size(); ++rank)
    all.push_back(read(comm::broadcast_string(ranks, own, rank)));
  rounds_ = plan_matrix_rounds(all, ranks.rank(), elements);
}

at::Tensor Exchange::empty(int64_t elements) const {
  return at::empty({elements}, options_);
}

Exchange::Flight Exchange::messages(const Transfer& transfer) const {
  return {.parts = empty(sum(transfer.part_counts)), .pieces = empty(sum(transfer.piece_counts)), .work = {}};
}

void Exchange::run(const at::TensorOptions& options, const optim::MatrixOperation& operation) {
  options_ = options;
  std::optional<Flight> operands, results;
  if (!rounds_.empty()) operands = send_operands(rounds_.front(), operation);
  for (size_t i = 0; i < rounds_.size(); ++i) {
    Flight next;
    if (i + 1 < rounds_.size()) next = send_operands(rounds_[i + 1], operation);
    std::vector<at::Tensor> matrices =
        make_whole(rounds_[i], *std::exchange(operands, std::move(next)), operation);
    for (at::Tensor& matrix : matrices) matrix = operation.transform(std::move(matrix));
    if (results) take_results(rounds_[i - 1], *std::exchange(results, std::nullopt), operation);
    results = send_results(rounds_[i], matrices, operation);
  }
  if (results) take_results(rounds_.back(), *std::move(results), operation);
}

Exchange::Flight Exchange::send_operands(const MatrixRound& round, const optim::MatrixOperation& operation) {
  Flight flight = messages(round.in);
  walk(
      round.in.parts, flight.parts, [&](size_t part) { return parts_[part].shape.numel(); },
      [&](size_t part, at::Tensor& elements) { operation.read(part, elements); });
  flight.work = ranks_.iall_to_all(flight.pieces, round.in.piece_counts, flight.parts, round.in.part_counts);
  return flight;
}

// Each matrix has memory of its own, so that GEMMs see the same alignment (and give the same bits) on
// whichever rank it is made whole.
std::vector<at::Tensor> Exchange::make_whole(const MatrixRound& round, Flight flight,
                                             const optim::MatrixOperation& operation) {
  std::vector<at::Tensor> matrices;
  for (const auto& shape : round.owned) matrices.push_back(at::empty(shape, options_));
  for (const auto& [part, matrix] : round.at_home) {
    const nn::SliceShape& shape = parts_[part].shape;
    at::Tensor elements = shape.is_whole() ? matrices[matrix].view({-1}) : empty(shape.numel());
    operation.read(part, elements);
    if (!shape.is_whole()) put(elements, shape, matrices[matrix]);
  }
  flight.work->wait(waiting);
  walk(round.in.pieces, flight.pieces, size_of,
       [&](const Transfer::Piece& piece, const at::Tensor& elements) {
         put(elements, piece.shape, matrices[piece.matrix]);
       });
  return matrices;
}

Exchange::Flight Exchange::send_results(const MatrixRound& round, const std::vector<at::Tensor>& results,
                                        const optim::MatrixOperation& operation) {
  Flight flight = messages(round.out);
  walk(round.out.pieces, flight.pieces, size_of,
       [&](const Transfer::Piece& piece, const at::Tensor& elements) {
         take(results[piece.matrix], piece.shape, elements);
       });
  flight.work =
      ranks_.iall_to_all(flight.parts, round.out.part_counts, flight.pieces, round.out.piece_counts);
  for (const auto& [part, matrix] : round.at_home) {
    const nn::SliceShape& shape = parts_[part].shape;
    const at::Tensor elements = shape.is_whole() ? results[matrix].view({-1}) : empty(shape.numel());
    if (!shape.is_whole()) take(results[matrix], shape, elements);
    operation.write(part, elements);
  }
  return flight;
}

void Exchange::take_results(const MatrixRound& round, Flight flight,
                            const optim::MatrixOperation& operation) {
  flight.work->wait(waiting);
  walk(
      round.out.parts, flight.parts, [&](size_t part) { return parts_[part].shape.numel(); },
      [&](size_t part, const at::Tensor& elements) { operation.write(part, elements); });
}

}  // namespace

optim::MatrixExchange make_matrix_exchange(comm::Communicator& ranks, std::vector<optim::MatrixPart> parts,
                                           int64_t elements) {
  const auto exchange = std::make_shared<Exchange>(ranks, std::move(parts), elements);
  return [exchange](const at::TensorOptions& options, const optim::MatrixOperation& operation) {
    exchange->run(options, operation);
  };
}

}  // namespace pptrain::shard
