// The product of an attention layer, softmax(q k^T) v, as the layer sees it: the seam between the layer and
// who holds the keys. The layer projects, norms and rotates its own tokens and knows nothing else.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/nn/causal_attention.h"
#include "core/nn/token_info.h"

namespace pptrain::nn {

// An implementation may exchange tokens, keys or heads with other ranks in either pass, or keep keys of
// earlier calls. One object may serve many layers if it keeps nothing between calls.
class AttentionProduct {
 public:
  // What a forward pass leaves to its backward pass. Operands are those that the backward pass will read: the
  // layer's own, or what an exchange made of them.
  struct Saved {
    at::Tensor q, k, v, out;
    AttentionStatistics statistics;
    int64_t kv_heads = 0;  // of the layer's own k, where an exchange made another number of it

    std::vector<at::Tensor> tensors() const;  // all of them; some share memory, some are undefined
  };

  virtual ~AttentionProduct() = default;

  // q: T [tokens, heads, head_dim]; k, v: T [tokens, kv_heads, head_dim], last stride 1, of this rank's
  // tokens, which `tokens` describes. Returns T [tokens, heads, head_dim], contiguous. The layer does not
  // write q, k, v or the result before the backward pass.
  virtual at::Tensor forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const TokenInfo& tokens, Saved& saved) = 0;

  // dout: as the result of forward. Gradients of this rank's q, k and v, last stride 1, in memory that the
  // layer may write. Takes `saved` over and frees it.
  virtual AttentionGradients backward(const at::Tensor& dout, const TokenInfo& tokens, Saved saved) = 0;
};

// All keys are this rank's: causal_attention.
std::shared_ptr<AttentionProduct> make_local_attention(AttentionOptions options = {});

}  // namespace pptrain::nn
