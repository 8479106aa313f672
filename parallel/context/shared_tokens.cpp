#include "parallel/context/shared_tokens.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"

namespace pptrain::context {

void check_shared_tokens(const comm::Communicator& group, const nn::TokenInfo& tokens, const at::Tensor& q) {
  const tokens::ContextSplit& split = *tokens.context;
  if (split.parts() != group.size() || split.part != group.rank()) {
    throw Error(fmt::format("attention: tokens of rank {} of {}, but this is rank {} of a group of {}",
                            split.part, split.parts(), group.rank(), group.size()));
  }
  int64_t all = 0;
  for (int r = 0; r < split.parts(); ++r) all += split.tokens(r);
  if (q.size(0) != split.tokens(split.part) || all != tokens.segments.tokens()) {
    throw Error(fmt::format(
        "attention: {} queries, but the split gives this rank {} of {} tokens, and the documents have {}",
        q.size(0), split.tokens(split.part), all, tokens.segments.tokens()));
  }
}

}  // namespace pptrain::context
