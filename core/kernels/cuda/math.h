// The arithmetic of one element, in float32, for device code and (tests) for the host.
#pragma once

#include <cmath>

#include "core/kernels/host_device.h"
#include "core/kernels/step_scalars.h"

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

// One weight and its moments; Lion has no exp_avg_sq.
struct StepState {
  float weight;
  float exp_avg;
  float exp_avg_sq;
};

// One step for one weight (Loshchilov & Hutter, arXiv 1711.05101, algorithm 2, with PyTorch's order of
// operations).
PPTRAIN_HOST_DEVICE inline StepState adamw_update(StepState s, float grad, const StepScalars& k) {
  grad *= k.grad_scale;
  s.weight *= k.decay;
  s.exp_avg += (grad - s.exp_avg) * k.one_minus_beta1;
  s.exp_avg_sq = s.exp_avg_sq * k.beta2 + k.one_minus_beta2 * grad * grad;
  s.weight -= k.step_size * (s.exp_avg / (sqrtf(s.exp_avg_sq) / k.correction2 + k.eps));
  return s;
}

// One step for one weight (Chen et al., arXiv 2302.06675, algorithm 2).
PPTRAIN_HOST_DEVICE inline StepState lion_update(StepState s, float grad, const StepScalars& k) {
  grad *= k.grad_scale;
  const float direction = s.exp_avg + (grad - s.exp_avg) * k.one_minus_beta1;
  const float sign = static_cast<float>(direction > 0.0F) - static_cast<float>(direction < 0.0F);
  s.weight = s.weight * k.decay - k.step_size * sign;
  s.exp_avg += (grad - s.exp_avg) * k.one_minus_beta2;
  return s;
}

}  // namespace pptrain::kernels::cuda
