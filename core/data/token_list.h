// A microbatch while it is made on the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/data/loader_options.h"
#include "core/data/microbatch.h"

namespace pptrain::data {

class TokenList {
 public:
  // Of `size` tokens: 0 with ignore_label, until they are written. `options` must outlive it.
  TokenList(const LoaderOptions& options, int64_t size);

  std::span<int64_t> tokens(int64_t first, int64_t count);
  std::span<int64_t> labels(int64_t first, int64_t count);

  // The tokens behind the document before: `length` of them, and then `filling`, whose positions are 0.
  void add_document(int64_t length, int64_t filling = 0);

  // What this rank needs of the list, on the options' device, without targets and global numbers. `split`:
  // how context-parallel ranks share it; null where there is one.
  Microbatch finish(std::shared_ptr<const tokens::ContextSplit> split);

 private:
  const LoaderOptions& options_;
  at::Tensor tokens_, labels_, positions_;
  at::Tensor filling_;  // undefined: there is none so far
  std::vector<int32_t> starts_{0};
};

}  // namespace pptrain::data
