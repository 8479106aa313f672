// Which rank makes which matrix whole and when, and who sends what to whom for that: a pure function of what
// each rank holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/optim/matrix_exchange.h"

namespace pptrain::shard {

// One exchange between parts and whole matrices. Lists are in the order in which elements lie in messages: by
// the other rank, this one left out.
struct Transfer {
  struct Piece {
    size_t matrix = 0;  // place in MatrixRound::owned
    nn::SliceShape shape;
  };
  std::vector<size_t> parts;          // this rank's, of matrices that others own
  std::vector<int64_t> part_counts;   // [rank] elements of them
  std::vector<Piece> pieces;          // of matrices owned here, that others hold
  std::vector<int64_t> piece_counts;  // [rank]
};

// What one rank does in one round.
struct MatrixRound {
  std::vector<std::vector<int64_t>> owned;         // shapes of the matrices that it makes whole
  std::vector<std::pair<size_t, size_t>> at_home;  // its parts of these: part, and place in `owned`
  Transfer in;   // from parts to pieces; of parts that several ranks hold, the rank next to the owner sends
  Transfer out;  // from pieces to parts: each holder gets its own
};

// parts[rank]: what each rank holds. Owners are holders of a part, chosen so that operations of products
// (rows cols min(rows, cols)) are shared out evenly: largest matrix first, to the rank with the least to do.
// A round is a matrix of each owner, or more where they have at most `elements` together. The same number of
// rounds on every rank. Throws Error that names a matrix whose parts are not all of it, or overlap without
// being equal.
std::vector<MatrixRound> plan_matrix_rounds(std::span<const std::vector<optim::MatrixPart>> parts, int rank,
                                            int64_t elements = optim::round_elements);

// A part of a matrix as rectangles, three at most.
struct Rectangle {
  int64_t row = 0, col = 0, rows = 0, cols = 0;
  int64_t local = 0;  // where it begins in the part, which has it row by row
};
std::vector<Rectangle> rectangles(const nn::SliceShape& shape);

}  // namespace pptrain::shard
