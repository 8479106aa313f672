// Kernels of mixture-of-experts layers: a router's choice, rows in the order of their experts, and GEMMs with
// a weight for each expert. Conventions as in kernels.h.
//
// A microbatch's `tokens` rows each choose `k` experts, so there are rows = tokens * k assignments; number
// token * k + j is the token's j-th choice. In expert order they are sorted by expert, then by assignment.
// `ends` (int32 [experts]) says where each expert's rows end there; the first begins at 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "core/kernels/kernel.h"

namespace pptrain::kernels {

using at::Tensor;

// --- Router ---

// probabilities = softmax(logits) over experts; logsumexp: of the logits. Each token chooses the k experts
// with the highest probability (plus `bias`, which affects only the choice), the highest first; of equal ones
// the lower index. `weights`: the probabilities of the chosen experts, divided by their sum with `normalise`.
// logits, probabilities: float32 [tokens, experts]; bias: float32 [experts]; logsumexp: float32 [tokens];
// chosen: int32 [tokens, k]; weights: float32 [tokens, k].
inline Kernel<void(const Tensor& logits, const std::optional<Tensor>& bias, bool normalise,
                   Tensor& probabilities, Tensor& logsumexp, Tensor& chosen, Tensor& weights)>
    route{"route"};

// dlogits = the gradient of a loss that reaches the logits through the weights (dweights: float32 [tokens,
// k]), through the probabilities (slopes: float32 [experts], the same for every token), and as z_slope times
// the sum of squared logsumexp. For tokens in `filling` (bool [tokens]) only through the weights. The others:
// as route left them. dlogits: float32 [tokens, experts].
inline Kernel<void(const Tensor& dweights, const Tensor& probabilities, const Tensor& logsumexp,
                   const Tensor& chosen, const std::optional<Tensor>& slopes, double z_slope,
                   const std::optional<Tensor>& filling, bool normalise, Tensor& dlogits)>
    route_backward{"route_backward"};

// --- Rows in expert order ---

// order: int32 [rows], the assignment at each place of expert order; place: int32 [tokens, k], its inverse.
// chosen: int32 [tokens, k], each in [0, experts).
inline Kernel<void(const Tensor& chosen, Tensor& ends, Tensor& order, Tensor& place)> group_rows{
    "group_rows"};

// out[r] = x[order[r] / each]. x: T [n, dim]; order: int32 [rows], each in [0, n * each); out: T [rows, dim].
inline Kernel<void(const Tensor& x, const Tensor& order, int64_t each, Tensor& out)> gather_rows{
    "gather_rows"};

// out[t] = the sum of x[place[t, j]] over j, in ascending order, then of residual[t] if given, in float32,
// rounded once. x: T [rows, dim]; place: int32 [tokens, k]; residual: float32 [tokens, dim]; out: T [tokens,
// dim].
inline Kernel<void(const Tensor& x, const Tensor& place, const std::optional<Tensor>& residual, Tensor& out)>
    sum_rows{"sum_rows"};

// --- SwiGLU with a weight for each row ---

// y = weight * silu(gate) * up. gate_up: T [rows, 2 * dim], gate first; weights: float32 [rows]; y: T [rows,
// dim].
inline Kernel<void(const Tensor& gate_up, const Tensor& weights, Tensor& y)> weighted_swiglu{
    "weighted_swiglu"};

// Gradients of weighted_swiglu, and its result again in `y` if given, as swiglu_backward. dweights: float32
// [rows]; dy, y: T [rows, dim]. dgate_up may alias gate_up, and y may alias dy.
inline Kernel<void(const Tensor& dy, const Tensor& gate_up, const Tensor& weights, Tensor& dgate_up,
                   Tensor& dweights, const std::optional<Tensor>& y)>
    weighted_swiglu_backward{"weighted_swiglu_backward"};

// --- GEMMs with a weight for each expert ---
// The rows of expert e are multiplied by weight[e] alone. Experts may have no rows. Sums and rounding as in
// linear, matmul and accumulate_weight_gradient. With an order (int32 [rows]), an operand's row r is
// x[order[r] / each] of the tensor given, as gather_rows would take it. If the back end must know the sizes
// on the host, `ends` may lie there: then the back end need not wait for the device.

// out = x weight[e]^T. x: T [rows or n, in]; ends: int32 [experts]; weight: T [experts, out, in]; out: T
// [rows, out].
inline Kernel<void(const Tensor& x, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                   const Tensor& weight, Tensor& out)>
    grouped_linear{"grouped_linear"};

// dx = dy weight[e]. dy: T [rows or n, out]; weight: T [experts, out, in]; dx: T [rows, in].
inline Kernel<void(const Tensor& dy, const std::optional<Tensor>& order, int64_t each, const Tensor& ends,
                   const Tensor& weight, Tensor& dx)>
    grouped_matmul{"grouped_matmul"};

// weight_grad[e] += dy^T x over the rows of e. dy: T [rows or n, out]; x: T [rows or n, in]; both orders have
// the same `each`; weight_grad: float32 [experts, out, in].
inline Kernel<void(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                   const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                   Tensor& weight_grad)>
    accumulate_grouped_weight_gradient{"accumulate_grouped_weight_gradient"};

// weight_grad[e] = dy^T x over the rows of e, zeros if it has none: for a weight_grad that holds nothing yet.
inline Kernel<void(const Tensor& dy, const std::optional<Tensor>& dy_order, const Tensor& x,
                   const std::optional<Tensor>& x_order, int64_t each, const Tensor& ends,
                   Tensor& weight_grad)>
    grouped_weight_gradient{"grouped_weight_gradient"};

}  // namespace pptrain::kernels
