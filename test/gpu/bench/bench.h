// Shared by all sections of the benchmark: the device, the sizes, data, and the clock.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "models/model_config.h"
#include "parallel/pipeline/time_marks.h"

namespace pptrain::bench {

// Sizes of the measured model.
struct Sizes {
  int64_t hidden = 0, ffn = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  std::vector<int64_t> rows;       // of GEMMs and stages: tokens of a microbatch
  std::vector<int64_t> sequences;  // of attention; each divides max_rows()

  int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t max_rows() const { return rows.back(); }
  models::ModelConfig model(int64_t layers) const;
};

Sizes llama3_8b();
Sizes small_sizes();  // the same kind of model, for a CPU

// Seconds of one call on the device's clock: the median over groups of calls.
struct Timing {
  double seconds = 0;
  double fastest = 0, slowest = 0;  // groups
  double host_seconds = 0;  // to queue a call, in the quickest group: later ones may wait for a full queue
  int64_t calls = 0;
};

class Bench {
 public:
  // `seconds`: how long the sustained figures take. With `small`, small sizes and short measurements.
  Bench(at::Device device, bool small, double seconds);

  at::Device device() const { return device_; }
  bool small() const { return small_; }
  const Sizes& sizes() const { return sizes_; }
  double sustained_seconds() const { return sustained_seconds_; }
  // FLOP/s: the published dense bf16 rate of a known GPU, the measured rate of a CPU, 0 if neither is known.
  double peak_flops() const { return peak_flops_; }

  // Normal values times `scale`; no values on the meta device (a dry run).
  at::Tensor random(at::IntArrayRef shape, at::ScalarType type, double scale = 1) const {
    return random_on(device_, shape, type, scale);
  }
  // Integers in [0, high) of type int64: [count].
  at::Tensor random_integers(int64_t high, int64_t count) const {
    return random_integers_on(device_, high, count);
  }
  static at::Tensor random_on(at::Device device, at::IntArrayRef shape, at::ScalarType type,
                              double scale = 1);
  static at::Tensor random_integers_on(at::Device device, int64_t high, int64_t count);

  // The number of operand sets of `bytes` each to use in turn, so that a set is no longer in the cache when
  // its turn comes again.
  size_t sets(double bytes) const;

  // Times work(0), work(1), ...: warms up, then runs groups of calls for about seconds_a_figure() in total.
  Timing measure(const std::function<void(int64_t)>& work);
  double seconds_a_figure() const { return small_ ? 0.01 : 0.2; }

  // Device seconds between marks that `work` sets, in order: one fewer than marks.
  std::vector<double> intervals(const std::function<void(pipeline::TimeMarks&)>& work);

  void synchronise() const;
  // Gives unused memory back to the device, and resets the peak.
  void reset_memory() const;
  int64_t peak_memory_bytes() const;

  // A large copy from device memory to device memory. Its bytes (read and written) per second bound kernels
  // that compute little. Measured at the first call.
  struct Copy {
    double bytes = 0;
    Timing timing;
    double rate() const { return bytes / timing.seconds; }
  };
  const Copy& copy();

 private:
  at::Device device_;
  bool small_;
  double sustained_seconds_;
  Sizes sizes_;
  double peak_flops_ = 0;
  pipeline::TimeMarks marks_;
  std::optional<Copy> copy_;
};

double median(std::vector<double> values);

}  // namespace pptrain::bench
