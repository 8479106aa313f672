// How a token stream becomes the microbatches of steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/data/data_loader.h"

namespace pptrain::data {

class StepSource {
 public:
  virtual ~StepSource() = default;

  // Which sample comes at a place of the order that steps take them in; behind the last one there is nothing
  // but filling.
  using Order = std::function<int64_t(int64_t place)>;
  // The step of the samples from place `next` on.
  virtual Step step(int64_t next, const Order& order) const = 0;

  // Samples that training takes in an epoch. Throws Error that says what is missing where there is none.
  virtual int64_t checked_samples() const = 0;
  // Those of validation, whose last one may be shorter.
  virtual int64_t all_samples() const = 0;
  // How many samples step(next) takes, in the order of the stream.
  virtual int64_t samples_from(int64_t next) const = 0;
};

// Throws Error for options that no rank can have.
std::shared_ptr<const StepSource> make_step_source(TokenDataset dataset, const LoaderOptions& options);

// The two kinds: rows cut from the stream, and whole documents.
std::shared_ptr<const StepSource> make_row_source(TokenDataset dataset, const LoaderOptions& options);
std::shared_ptr<const StepSource> make_document_source(TokenDataset dataset, const LoaderOptions& options);

}  // namespace pptrain::data
