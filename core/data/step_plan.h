// Which documents lie where in a step's microbatches, known before a token is read: every rank derives the
// whole of it, and with it the length of every microbatch on every data rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/data/data_loader.h"
#include "core/data/documents.h"
#include "core/data/packing.h"
#include "core/data/sampler.h"

namespace pptrain::data {

// How a token stream becomes the microbatches of steps.
class StepSource {
 public:
  virtual ~StepSource() = default;

  // Which sample comes at a place of the order that steps take them in; behind a stream's last one there is
  // nothing but filling.
  using Order = std::function<Sample(int64_t place)>;
  // The step of the samples from place `next` on.
  virtual Step step(int64_t next, const Order& order) const = 0;

  // Samples of each stream that training takes in an epoch. Throws Error that says what is missing where one
  // has none.
  virtual std::vector<int64_t> checked_samples() const = 0;
  // Those that validation takes of the first stream, whose last one may be shorter.
  virtual int64_t all_samples() const = 0;
  // How many samples step(next) takes, in the order of the first stream.
  virtual int64_t samples_from(int64_t next) const = 0;
};

// Of one stream or more. Throws Error for options that no rank can have.
std::shared_ptr<const StepSource> make_step_source(std::vector<TokenDataset> streams,
                                                   const LoaderOptions& options);

// The two kinds: rows cut from the streams, and whole documents.
std::shared_ptr<const StepSource> make_row_source(std::vector<TokenDataset> streams,
                                                  const LoaderOptions& options);
std::shared_ptr<const StepSource> make_document_source(std::vector<TokenDataset> streams,
                                                       const LoaderOptions& options);

// A document of a microbatch: a slice, or none (length 0), and tokens of filling behind it.
struct PlacedSlice {
  DocumentSlice slice = {};
  int64_t filling = 0;

  int64_t tokens() const { return slice.length + filling; }
  bool operator==(const PlacedSlice&) const = default;
};

// A microbatch of one data rank.
struct ListPlan {
  std::vector<PlacedSlice> documents;  // none of them empty

  int64_t tokens() const;
  int64_t filling() const;
  int64_t targets() const;
};

struct StepPlan {
  std::vector<std::vector<ListPlan>> microbatches;  // [number][data rank]
  int64_t slices = 0;                               // that it took

  int64_t tokens() const;
  int64_t filling() const;
  int64_t targets() const;
};

// The fewest tokens of a list of which every context- and tensor-parallel rank gets one.
int64_t least_tokens(const LoaderOptions& options);

// Tokens of the whole step's microbatches, as `offered` slices come: the i-th, or nothing behind the last.
//
// Packing into D*m*b rows of seq_len says which of them are taken, so that a step takes the same documents on
// any layout with as many rows. With fixed lengths, row r is of microbatch r / (D*b), of data rank r % (D*b)
// / b. With others microbatches are to cost alike: documents of packed rows are levelled over them, rows
// shared out to microbatches, and a microbatch's D*b rows to data ranks, as many to each.
//
// Filling belongs to the last document of a row (fixed) or list (others), as long as that is of at most
// seq_len tokens; what is missing then is documents of its own. Lists of exact lengths have none, but where
// they would be shorter than least_tokens().
StepPlan plan_step(const LoaderOptions& options,
                   const std::function<std::optional<DocumentSlice>(int64_t)>& offered);

}  // namespace pptrain::data
