// The arithmetic of one element, in float32, for device code and (tests) for the host.
#pragma once

#include <cmath>

#include "core/kernels/activation.h"
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

struct Activated {
  float value;
  float slope;
};

template <Activation kActivation>
PPTRAIN_HOST_DEVICE inline Activated activated(float x) {
  if constexpr (kActivation == Activation::silu) {
    const float s = sigmoid(x);
    return {x * s, s * (1.0F + x * (1.0F - s))};
  } else if constexpr (kActivation == Activation::gelu) {
    const float phi = 0.5F * (1.0F + erff(x * 0.70710678118654752F));
    return {x * phi, phi + x * expf(-0.5F * x * x) * 0.39894228040143268F};
  } else if constexpr (kActivation == Activation::gelu_tanh) {
    // As on the CPU (loops.inc).
    constexpr float two_c = 1.5957691216057308F;
    const float square = fminf(1e4F, x * x);
    const float s = sigmoid(x * two_c * (1.0F + 0.044715F * square));
    return {x * s, s * (1.0F + x * (1.0F - s) * two_c * (1.0F + 3.0F * 0.044715F * square))};
  } else {
    const float r = x > 0.0F ? x : 0.0F;
    return {r * r, r + r};
  }
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
