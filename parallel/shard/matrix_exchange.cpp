#include "parallel/shard/matrix_exchange.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>

#include <numeric>
#include <optional>
#include <sstream>
#include <utility>

namespace pptrain::shard {
namespace {

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

MatrixExchange::MatrixExchange(comm::Communicator& ranks, std::vector<optim::MatrixPart> parts,
                               int64_t elements)
    : ranks_(ranks), parts_(std::move(parts)) {
  const std::string own = write(parts_);
  std::vector<std::vector<optim::MatrixPart>> all;
  for (int rank = 0; rank < ranks.size(); ++rank)
    all.push_back(read(comm::broadcast_string(ranks, own, rank)));
  rounds_ = plan_matrix_rounds(all, ranks.rank(), elements);
}

at::Tensor MatrixExchange::empty(int64_t elements) const {
  return at::empty({elements}, options_);
}

MatrixExchange::Flight MatrixExchange::messages(const Transfer& transfer) const {
  return {.parts = empty(sum(transfer.part_counts)), .pieces = empty(sum(transfer.piece_counts)), .work = {}};
}

void MatrixExchange::run(const at::TensorOptions& options, const optim::MatrixOperation& operation) {
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

MatrixExchange::Flight MatrixExchange::send_operands(const MatrixRound& round,
                                                     const optim::MatrixOperation& operation) {
  Flight flight = messages(round.in);
  walk(
      round.in.parts, flight.parts, [&](size_t part) { return parts_[part].shape.numel(); },
      [&](size_t part, at::Tensor& elements) { operation.read(part, elements); });
  flight.work = ranks_.iall_to_all(flight.pieces, round.in.piece_counts, flight.parts, round.in.part_counts);
  return flight;
}

// Each in memory of its own, so that products see the same alignment (and give the same bits) wherever it is
// made whole.
std::vector<at::Tensor> MatrixExchange::make_whole(const MatrixRound& round, Flight flight,
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

MatrixExchange::Flight MatrixExchange::send_results(const MatrixRound& round,
                                                    const std::vector<at::Tensor>& results,
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

void MatrixExchange::take_results(const MatrixRound& round, Flight flight,
                                  const optim::MatrixOperation& operation) {
  flight.work->wait(waiting);
  walk(
      round.out.parts, flight.parts, [&](size_t part) { return parts_[part].shape.numel(); },
      [&](size_t part, const at::Tensor& elements) { operation.write(part, elements); });
}

}  // namespace pptrain::shard
