// Fused kernels, for operations bound by memory traffic, and GEMMs. A kernel is called like a function and
// runs on the device of its tensors: core/kernels/cpu and core/kernels/cuda implement each of them.
//
// Conventions: T is the compute type of activations (float32 or bfloat16); arithmetic inside a kernel is
// float32. [rows, dim] tensors are contiguous unless noted otherwise. Outputs are allocated by the caller and
// may not alias inputs unless noted otherwise. Kernels are deterministic: the same inputs give the same bits,
// whatever the rank. CUDA kernels are asynchronous on the current stream. Every function is safe to call from
// several threads. A wrong argument is an Error that names kernel and argument. In a DryRun (dry_run.h),
// kernels take meta tensors, check them and record what a run would cost.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "core/kernels/activation.h"
#include "core/kernels/kernel.h"
#include "core/kernels/stochastic_rounding.h"

namespace pptrain::kernels {

using at::Tensor;

// --- RMSNorm (Zhang & Sennrich, arXiv 1910.07467) ---

// y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps). x, y: T [rows, dim]; weight: float32 [dim];
// rstd: float32 [rows].
inline Kernel<void(const Tensor& x, const Tensor& weight, double eps, Tensor& y, Tensor& rstd)> rms_norm{
    "rms_norm"};

// sum = x + delta, rounded to T; y and rstd as rms_norm of the rounded sum, so that the fused and the
// separate form agree bit for bit. sum may alias x or delta.
inline Kernel<void(const Tensor& x, const Tensor& delta, const Tensor& weight, double eps, Tensor& sum,
                   Tensor& y, Tensor& rstd)>
    add_rms_norm{"add_rms_norm"};

// dx = d(rms_norm)/dx applied to dy, plus residual_grad if given, rounded once; weight_grad += its gradient,
// summed over rows in row order. dy, x, residual_grad, dx: T [rows, dim]; weight, weight_grad: float32 [dim];
// rstd: float32 [rows]. dx may alias dy or residual_grad.
inline Kernel<void(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& rstd,
                   const std::optional<Tensor>& residual_grad, Tensor& dx, Tensor& weight_grad)>
    rms_norm_backward{"rms_norm_backward"};

// --- Heads: optional per-head RMSNorm (Qwen3's QK-norm), then rotary embedding ---

// Rotary tables: cos, sin: float32 [max_position, head_dim / 2].
struct RopeTable {
  Tensor cos;
  Tensor sin;
};

// What one call of norm_rope does with q, with k, or with both as one tensor.
struct HeadsPart {
  Tensor x;  // T [tokens, heads, head_dim], any strides with the last one 1 (a view of the fused qkv)
  Tensor y;  // as x, other strides allowed; without weight it may be x itself
  std::optional<Tensor> weight = std::nullopt;  // float32 [head_dim]
  Tensor rstd = {};                             // float32 [tokens, heads], written only with weight

  const Tensor& first() const { return x; }
};

// One or two parts, with weights all or none, and of one type, number of tokens and head_dim, in one launch
// on a GPU. Each head is normalised with its part's weight if given, then rotated in the "half" layout of
// Hugging Face's Llama: pairs (i, i + head_dim / 2), angle position * inv_freq[i]. positions: int32 [tokens].
inline Kernel<void(const std::vector<HeadsPart>& parts, double eps, const RopeTable& rope,
                   const Tensor& positions)>
    norm_rope{"norm_rope"};

// Gradients of one part of norm_rope. x, rstd and weight_grad only with weight.
struct HeadsGradient {
  Tensor dy;      // T [tokens, heads, head_dim], any strides with the last one 1
  Tensor dx;      // as dy, other strides allowed (a view of the fused dqkv), or dy itself
  Tensor x = {};  // as dy, other strides allowed
  std::optional<Tensor> weight = std::nullopt;       // float32 [head_dim]
  Tensor rstd = {};                                  // float32 [tokens, heads]
  std::optional<Tensor> weight_grad = std::nullopt;  // float32 [head_dim], its gradient is added to it

  const Tensor& first() const { return dy; }
};

// Gradient of norm_rope, of the same parts.
inline Kernel<void(const std::vector<HeadsGradient>& parts, const RopeTable& rope, const Tensor& positions)>
    norm_rope_backward{"norm_rope_backward"};

// --- SwiGLU (Shazeer, arXiv 2002.05202) ---

// y = silu(gate) * up. gate_up: T [rows, 2 * dim], gate first; y: T [rows, dim].
inline Kernel<void(const Tensor& gate_up, Tensor& y)> swiglu{"swiglu"};

// Gradient of swiglu. `y`, if given, receives swiglu's result again, with its bits, for callers that did not
// keep it. dy, y: T [rows, dim]; dgate_up: as gate_up. dgate_up may alias gate_up, and y may alias dy.
inline Kernel<void(const Tensor& dy, const Tensor& gate_up, Tensor& dgate_up, const std::optional<Tensor>& y)>
    swiglu_backward{"swiglu_backward"};

// --- Other activations ---

// y = activation(x), or activation(gate) * up if x has twice y's columns, gate first. x: T [rows, dim] or
// [rows, 2 * dim]; y: T [rows, dim].
inline Kernel<void(const Tensor& x, Activation activation, Tensor& y)> activate{"activate"};

// Gradient of activate, and its result again in `y` if given, as swiglu_backward. dy, y: T [rows, dim]; dx:
// as x. dx may alias x, and y may alias dy.
inline Kernel<void(const Tensor& dy, const Tensor& x, Activation activation, Tensor& dx,
                   const std::optional<Tensor>& y)>
    activate_backward{"activate_backward"};

// --- Embedding and cross entropy, of a whole vocabulary or of one that ranks shard ---

// The tokens [first, first + n) of a vocabulary of `vocab`, n being the rows (or columns) of the tensor that
// comes with it. The whole vocabulary is {0, n}.
struct VocabularyPart {
  int64_t first = 0;
  int64_t vocab = 0;
};

// out[i] = weight[tokens[i] - first], or 0 if another rank has that row. tokens: int64 [rows]; weight: T [n,
// dim]; out: T [rows, dim].
inline Kernel<void(const Tensor& tokens, const Tensor& weight, VocabularyPart part, Tensor& out)> embedding{
    "embedding"};

// weight_grad[tokens[i] - first] += dy[i] for the tokens of the part, in row order. dy: T [rows, dim];
// weight_grad: float32 [n, dim].
inline Kernel<void(const Tensor& tokens, const Tensor& dy, VocabularyPart part, Tensor& weight_grad)>
    embedding_backward{"embedding_backward"};

// Per-row negative log-likelihood in nats, for logits T [rows, vocab] and labels int64 [rows]; a row with
// label -100 has loss 0. loss: float32 [rows]. With want_gradient, logits become the gradient of the row sum
// (softmax - one-hot; 0 in ignored rows), rounded to T.
inline Kernel<void(Tensor& logits, const Tensor& labels, Tensor& loss, bool want_gradient)> cross_entropy{
    "cross_entropy"};

// What ranks tell each other of a row of logits, T [rows, n]: its maximum, the sum of exp(x - maximum), and
// the label's logit, 0 if another rank has it. A row with label -100 has zeros. statistics: float32 [rows,
// 3]; labels: int64 [rows].
inline Kernel<void(const Tensor& logits, const Tensor& labels, VocabularyPart part, Tensor& statistics)>
    softmax_statistics{"softmax_statistics"};

// From the statistics of all ranks, float32 [ranks, rows, 3]: cross entropy as kernels::cross_entropy gives
// it of whole rows of logits, and its gradient in this part of them, in place. loss: float32 [rows].
inline Kernel<void(Tensor& logits, const Tensor& labels, const Tensor& statistics, VocabularyPart part,
                   Tensor& loss, bool want_gradient)>
    cross_entropy_part{"cross_entropy_part"};

// x = cap * tanh(scale * x / cap), or scale * x if cap is 0, in place, rounded once. x: T [rows, n].
inline Kernel<void(Tensor& x, double scale, double cap)> softcap{"softcap"};

// Gradient of softcap with a cap, in place: dlogits *= scale * (1 - (capped / cap)^2). capped, dlogits: T
// [rows, n], capped as softcap left it.
inline Kernel<void(const Tensor& capped, double scale, double cap, Tensor& dlogits)> softcap_backward{
    "softcap_backward"};

// --- GEMMs ---

// out = a b, summed in float32 and rounded once, by the library that is fastest at this shape. a: T [rows,
// inner]; b: T [inner, cols]; out: T [rows, cols].
inline Kernel<void(const Tensor& a, const Tensor& b, Tensor& out)> matmul{"matmul"};

// out = x weight^T + bias. x: T [rows, in], whose rows may lie apart; weight: T [out, in]; bias: T [out];
// out: T [rows, out].
inline Kernel<void(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& out)>
    linear{"linear"};

// weight_grad += dy^T x, with float32 accumulation all the way. dy: T [rows, out]; x: T [rows, in];
// weight_grad: float32 [out, in].
inline Kernel<void(const Tensor& dy, const Tensor& x, Tensor& weight_grad)> accumulate_weight_gradient{
    "accumulate_weight_gradient"};

// weight_grad = dy^T x, for a weight_grad that holds nothing yet, whatever its bytes are. All of it is
// written; without rows, with zeros.
inline Kernel<void(const Tensor& dy, const Tensor& x, Tensor& weight_grad)> weight_gradient{
    "weight_gradient"};

// bias_grad += column sums of dy, in row order. dy: T [rows, out]; bias_grad: float32 [out].
inline Kernel<void(const Tensor& dy, Tensor& bias_grad)> accumulate_bias_gradient{"accumulate_bias_gradient"};

// --- Initial values ---

// Element i of out becomes std times standard normal value number first + i of the key, rounded to float32.
// It depends only on key and number, so that each rank can make its slice of a parameter by itself, with the
// same bits on every back end (normal_value.h). Requires: out: float32, contiguous, any shape; first >= 0.
inline Kernel<void(Tensor& out, uint64_t key, int64_t first, double std)> normal_values{"normal_values"};

// --- Optimizers ---

// The scalars of a step of adamw or lion.
struct StepArgs {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;        // adamw's
  double weight_decay = 0;  // decoupled: weight -= lr * weight_decay * weight
  double grad_scale = 1;    // multiplies the gradient first: clip coefficient / number of valid tokens
  int64_t step = 1;         // counted from 1, for adamw's bias correction
};

// Receives what a step overwrites, so that it can be taken back. Of its types and size.
struct StepPrevious {
  Tensor weight, exp_avg, exp_avg_sq;
};

// The tensors that one call of adamw or lion steps by one set of scalars. All have one size; weight and grad
// are float32. Lion has no exp_avg_sq. The moments are T, the same of all parts: the step computes in
// float32, and rounds bfloat16 moments stochastically as it stores them, by `rounding`. `compute`, if given,
// receives the new weight rounded to bfloat16.
struct StepPart {
  Tensor weight, grad, exp_avg, exp_avg_sq;
  std::optional<Tensor> compute;
  StepArgs args;
  std::optional<StepPrevious> previous;
  RoundingBits rounding = {};

  const Tensor& first() const { return weight; }
};

// AdamW (Loshchilov & Hutter, arXiv 1711.05101), with PyTorch's arithmetic, of all parts (at least one). An
// element's bits depend on its own values and scalars alone.
inline Kernel<void(const std::vector<StepPart>& parts)> adamw{"adamw"};

// Lion (Chen et al., arXiv 2302.06675, algorithm 2) of all parts (at least one). The weight decays and moves
// by lr against the sign of c = beta1 exp_avg + (1 - beta1) g; the sign is 0 if c is 0 or NaN. Then exp_avg =
// beta2 exp_avg + (1 - beta2) g.
inline Kernel<void(const std::vector<StepPart>& parts)> lion{"lion"};

// next = average + (1 - beta) (g - average), rounded to T: an exponential average of gradients, and taken
// once more with the same gradient, Nesterov's look ahead. average, grad: float32 of one size; next: T of
// that size, or `average` itself. grad_scale multiplies the gradient g first.
inline Kernel<void(const Tensor& average, const Tensor& grad, Tensor& next, double beta, double grad_scale)>
    momentum{"momentum"};

// weight = decay weight - step direction. weight: float32; direction: T, both of one size; `compute`, if
// given, receives the new weight rounded to bfloat16.
inline Kernel<void(Tensor& weight, const Tensor& direction, const std::optional<Tensor>& compute,
                   double decay, double step)>
    descend{"descend"};

// x: float32, contiguous: the elements of a buffer from `place` on.
struct BufferPart {
  Tensor x;
  int64_t place = 0;

  const Tensor& first() const { return x; }
};

// sum += x^2 of all parts (at least one). The elements of x that lie in one block (1,024 elements) of a
// part's buffer are summed in float64, in an order that only the block and its part decide; all other
// additions are exact. So a buffer gives the same bits however it is cut at multiples of 1,024 elements, in
// one call or several. sum: int64 [20] on the parts' device, the words of an ExactSum (exact_sum.h).
inline constexpr int64_t squares_block = 1024;
inline Kernel<void(const std::vector<BufferPart>& parts, Tensor& sum)> add_squares{"add_squares"};

}  // namespace pptrain::kernels
