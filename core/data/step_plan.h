// Which documents lie where in a step's microbatches, known before a token is read: every rank derives the
// whole of it, and with it the length of every microbatch on every data rank.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "core/data/documents.h"
#include "core/data/loader_options.h"
#include "core/data/packing.h"

namespace pptrain::data {

// A document of a microbatch: a piece, or none (length 0), and tokens of filling behind it.
struct PlacedPiece {
  Piece piece = {};
  int64_t filling = 0;

  int64_t tokens() const { return piece.length + filling; }
  bool operator==(const PlacedPiece&) const = default;
};

// A microbatch of one data rank.
struct ListPlan {
  std::vector<PlacedPiece> documents;  // none of them empty

  int64_t tokens() const;
  int64_t filling() const;
  int64_t targets() const;
};

struct StepPlan {
  std::vector<std::vector<ListPlan>> microbatches;  // [number][data rank]
  int64_t pieces = 0;                               // that it took

  int64_t tokens() const;
  int64_t filling() const;
  int64_t targets() const;
};

// The fewest tokens of a list of which every context- and tensor-parallel rank gets one.
int64_t least_tokens(const LoaderOptions& options);

// Tokens of the whole step's microbatches, as `offered` pieces come: the i-th, or nothing behind the last.
//
// Packing into D*m*b rows of seq_len says which of them are taken, so that a step takes the same documents on
// any layout with as many rows. With fixed lengths, row r is of microbatch r / (D*b), of data rank r % (D*b)
// / b. With others microbatches are to cost alike: documents of packed rows are levelled over them, rows
// shared out to microbatches, and a microbatch's D*b rows to data ranks, as many to each.
//
// Filling belongs to the last document of a row (fixed) or list (others), as long as that is of at most
// seq_len tokens; what is missing then is documents of its own. Lists of exact lengths have none, but where
// they would be shorter than least_tokens().
StepPlan plan_step(const LoaderOptions& options, const std::function<std::optional<Piece>(int64_t)>& offered);

}  // namespace pptrain::data
