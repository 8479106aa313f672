// What a product of attention over several ranks asks of the tokens it gets.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/nn/token_info.h"
#include "parallel/comm/communicator.h"

namespace pptrain::context {

// Throws Error unless the split is of the ranks of `group`, as this rank sees it, and q has a row for each of
// this rank's tokens.
void check_shared_tokens(const comm::Communicator& group, const nn::TokenInfo& tokens, const at::Tensor& q);

}  // namespace pptrain::context
