// Matrices whose parts lie on several ranks are made whole on one of them and sent back. The plan (which rank
// makes which matrix whole, and when) is a pure function of what each rank holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "core/optim/matrix_exchange.h"
#include "parallel/comm/communicator.h"

namespace pptrain::shard {

// One exchange between parts and whole matrices. Both lists are in the order in which elements lie in
// messages: by the other rank, which is never this one.
struct Transfer {
  struct Item {
    int rank = 0;      // the other one
    size_t index = 0;  // number of the part, or place in MatrixRound::owned
    nn::SliceShape shape;
  };
  std::vector<Item> parts;   // this rank's, of matrices that the others own
  std::vector<Item> pieces;  // of matrices owned here, that the others hold
};

// What one rank does in one round.
struct MatrixRound {
  std::vector<std::vector<int64_t>> owned;         // shapes of the matrices that it makes whole
  std::vector<std::pair<size_t, size_t>> at_home;  // its parts of these: part, and place in `owned`
  Transfer in;   // from parts to pieces; of parts that several ranks hold, the rank next to the owner sends
  Transfer out;  // from pieces to parts: each holder gets its own
};

// parts[rank]: what each rank holds. Owners are holders of a part, chosen so that GEMM operations (rows cols
// min(rows, cols)) are divided evenly: largest matrix first, to the rank with the least to do. A round is a
// matrix of each owner, or more if they have at most `elements` together. The same number of rounds on every
// rank. Throws Error that names a matrix whose parts are not all of it, or overlap without being equal.
std::vector<MatrixRound> plan_matrix_rounds(std::span<const std::vector<optim::MatrixPart>> parts, int rank,
                                            int64_t elements = optim::round_elements);

// A part of a matrix as rectangles, three at most.
struct Rectangle {
  int64_t row = 0, col = 0, rows = 0, cols = 0;
  int64_t local = 0;  // where it begins in the part, which has it row by row
};
std::vector<Rectangle> rectangles(const nn::SliceShape& shape);

// Works in rounds (MatrixRound). While a rank transforms the matrices of one round, operands of the next are
// on their way to it, and results of the one before on their way back. A rank holds at once, in elements: its
// own matrices of one round; its messages of operands of two rounds, and of results of two. A round is
// optim::round_elements over all ranks, or one matrix a rank if that is more.
//
// `ranks`: all that hold parts of the same matrices, whatever they hold. Collective; the communicator must
// outlive the result. Throws Error as plan_matrix_rounds does, on every rank.
optim::MatrixExchange make_matrix_exchange(comm::Communicator& ranks, std::vector<optim::MatrixPart> parts,
                                           int64_t elements = optim::round_elements);

}  // namespace pptrain::shard
