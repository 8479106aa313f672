// Steps of rows cut from the streams, and of whole documents packed into rows.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/data/data_loader.h"
#include "core/data/microbatch.h"
#include "core/data/sampler.h"

namespace pptrain::data {

// A microbatch while it is made on the host.
class TokenList {
 public:
  // A list of `size` tokens: 0 with ignore_label, until they are written. `options` must outlive it.
  TokenList(const LoaderOptions& options, int64_t size);

  std::span<int64_t> tokens(int64_t first, int64_t count);
  std::span<int64_t> labels(int64_t first, int64_t count);
  // The labels from `first` on are the tokens from `place` on of their stream.
  void set_places(int64_t first, int64_t count, int64_t place);

  // The tokens behind the document before: `length` of them, and then `filling`, whose positions are 0.
  void add_document(int64_t length, int64_t filling = 0);

  // What this rank needs of the list, on the options' device, without targets and global numbers. `split`:
  // how context-parallel ranks shard it; null if they do not.
  Microbatch finish(std::shared_ptr<const tokens::ContextSplit> split);

 private:
  const LoaderOptions& options_;
  at::Tensor tokens_, labels_, positions_;
  at::Tensor places_;   // undefined if they are not needed
  at::Tensor filling_;  // undefined: there is none so far
  std::vector<int32_t> starts_{0};
  std::vector<int64_t> text_lengths_;  // of each document
};

// How a token stream becomes the microbatches of steps.
class StepSource {
 public:
  virtual ~StepSource() = default;

  // Which sample comes at a place of the order that steps take them in; after a stream's last one there is
  // nothing but filling.
  using Order = std::function<Sample(int64_t place)>;
  // The step of the samples from place `next` on.
  virtual Step step(int64_t next, const Order& order) const = 0;

  // Samples of each stream that training takes in an epoch. Throws Error that says what is missing if a
  // stream has none.
  virtual std::vector<int64_t> checked_samples() const = 0;
  // Samples that validation takes of the first stream; the last one may be shorter.
  virtual int64_t all_samples() const = 0;
  // How many samples step(next) takes, in the order of the first stream.
  virtual int64_t samples_from(int64_t next) const = 0;
};

// Steps of one stream or more. Throws Error for options that no rank can have.
std::shared_ptr<const StepSource> make_step_source(std::vector<TokenDataset> streams,
                                                   const LoaderOptions& options);

// The kind that keeps documents whole.
std::shared_ptr<const StepSource> make_document_source(std::vector<TokenDataset> streams,
                                                       const LoaderOptions& options);

// The fewest tokens of a list such that every context- and tensor-parallel rank gets one, in every slice.
int64_t least_tokens(const LoaderOptions& options);

}  // namespace pptrain::data
