#include "core/nn/attention_product.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"

namespace pptrain::nn {
namespace {

using at::Tensor;

class LocalAttention final : public AttentionProduct {
 public:
  explicit LocalAttention(AttentionOptions options) : options_(options) {}

  Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, const TokenInfo& tokens,
                 Saved& saved) override {
    if (tokens.context) {
      throw Error(fmt::format("attention: tokens of rank {} of {}, but the product has its own keys alone",
                              tokens.context->part, tokens.context->parts()));
    }
    Tensor out = causal_attention(q, k, v, tokens.segments, saved.statistics, options_);
    saved.q = q;
    saved.k = k;
    saved.v = v;
    saved.out = out;
    return out;
  }

  AttentionGradients backward(const Tensor& dout, const TokenInfo& tokens, Saved saved) override {
    return causal_attention_backward(dout, saved.q, saved.k, saved.v, tokens.segments, saved.out,
                                     saved.statistics);
  }

 private:
  AttentionOptions options_;
};

}  // namespace

std::vector<Tensor> AttentionProduct::Saved::tensors() const {
  std::vector<Tensor> result{q, k, v, out};
  for (const auto& call : statistics.calls) {
    result.insert(result.end(), {call.logsumexp, call.rng_seed, call.rng_offset});
  }
  return result;
}

std::shared_ptr<AttentionProduct> make_local_attention(AttentionOptions options) {
  return std::make_shared<LocalAttention>(options);
}

}  // namespace pptrain::nn
