// The arithmetic of one element, in float32, for device code and (tests) for the host.
#pragma once

#include <cmath>

#include "core/kernels/host_device.h"

namespace pptrain::kernels::cuda {

PPTRAIN_HOST_DEVICE inline float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

PPTRAIN_HOST_DEVICE inline float silu(float x) {
  return x * sigmoid(x);
}

PPTRAIN_HOST_DEVICE inline float swiglu_value(float gate, float up) {
  return silu(gate) * up;
}

struct SwigluGradient {
  float gate;
  float up;
};

// Gradient of silu(gate) * up, times dy.
PPTRAIN_HOST_DEVICE inline SwigluGradient swiglu_gradient(float dy, float gate, float up) {
  const float s = sigmoid(gate);
  return {dy * up * s * (1.0F + gate * (1.0F - s)), dy * gate * s};
}

struct Pair {
  float first;
  float second;
};

// Rotates (first, second) by the angle whose cosine and sine are given.
PPTRAIN_HOST_DEVICE inline Pair rotate(Pair x, float cosine, float sine) {
  return {x.first * cosine - x.second * sine, x.second * cosine + x.first * sine};
}

// Scalars of one AdamW step, derived once in double on the host as torch.optim.AdamW does.
struct AdamWScalars {
  float grad_scale;
  float decay;  // 1 - lr * weight_decay
  float beta2;
  float one_minus_beta1;
  float one_minus_beta2;
  float step_size;    // lr / (1 - beta1^step)
  float correction2;  // sqrt(1 - beta2^step)
  float eps;
};

struct AdamWState {
  float weight;
  float exp_avg;
  float exp_avg_sq;
};

// One step for one weight (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2, with PyTorch's order of
// operations).
PPTRAIN_HOST_DEVICE inline AdamWState adamw_update(AdamWState s, float grad, const AdamWScalars& k) {
  grad *= k.grad_scale;
  s.weight *= k.decay;
  s.exp_avg += (grad - s.exp_avg) * k.one_minus_beta1;
  s.exp_avg_sq = s.exp_avg_sq * k.beta2 + k.one_minus_beta2 * grad * grad;
  s.weight -= k.step_size * (s.exp_avg / (sqrtf(s.exp_avg_sq) / k.correction2 + k.eps));
  return s;
}

// Scalars of one Lion step, derived once in double on the host.
struct LionScalars {
  float grad_scale;
  float decay;  // 1 - lr * weight_decay
  float one_minus_beta1;
  float one_minus_beta2;
  float lr;
};

struct LionState {
  float weight;
  float exp_avg;
};

// One step for one weight (Chen et al., arXiv 2302.06675, algorithm 2).
PPTRAIN_HOST_DEVICE inline LionState lion_update(LionState s, float grad, const LionScalars& k) {
  grad *= k.grad_scale;
  const float direction = s.exp_avg + (grad - s.exp_avg) * k.one_minus_beta1;
  const float sign = static_cast<float>(direction > 0.0F) - static_cast<float>(direction < 0.0F);
  s.weight = s.weight * k.decay - k.lr * sign;
  s.exp_avg += (grad - s.exp_avg) * k.one_minus_beta2;
  return s;
}

}  // namespace pptrain::kernels::cuda
