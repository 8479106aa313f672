// What the trainer and the checkpoint writer know of an optimizer: a step, its state by name, and a step
// back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "core/kernels/exact_sum.h"
#include "core/nn/parameter.h"
#include "core/optim/footprint.h"
#include "core/optim/matrix_exchange.h"
#include "core/optim/update.h"

namespace pptrain::optim {

// A slice's part of one kind of state, as checkpoints name it: by the parameter it belongs to, within a file
// per kind.
struct StateTensor {
  std::string file;  // "adamw.exp_avg"
  const nn::Slice* slice;
  at::Tensor tensor;  // of slice->master's shape: the state itself, to be read or filled
};

// The file of the average of weights (optimizer.ema_decay).
inline constexpr const char* average_file = "ema";

// How one parameter is stepped.
struct Rule {
  size_t update = 0;  // of the optimizer's updates
  double lr_scale = 1;
  double weight_decay = 0;

  friend bool operator==(const Rule&, const Rule&) = default;
};

// Slices, each stepped by the update that its rule names. State lies beside the slices, of the kinds that
// their update has, and a step can be taken back.
class Optimizer {
 public:
  // The shards must be materialised with gradients (throws Error otherwise) and outlive this. Collective if
  // an update is. ema_decay: 0 for no average of weights.
  Optimizer(std::span<nn::Buffer* const> shards, std::vector<std::unique_ptr<Update>> updates,
            const std::function<Rule(const nn::ParameterSpec&)>& rule_of, double ema_decay = 0);
  ~Optimizer();
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One step of every slice at this learning rate, by its main gradient times grad_scale. Masters and this
  // rank's compute weights are new afterwards; gradients are left as they are. Collective if an update is.
  void step(double lr, double grad_scale);

  std::vector<StateTensor> state();

  // As before the first step, whatever a checkpoint has left; call it after the masters were filled.
  void reset();

  // The average of weights begins as the masters; call it after they were filled, unless its state was.
  void start_average();

  // From now on each step keeps what it overwrites, for undo(): masters and state once more.
  void keep_previous();
  // Takes the last step back, bit for bit: masters, compute weights, state and step count. Once after a step;
  // only with keep_previous(), which must have come before that step. Throws Error otherwise.
  void undo();

  // Steps taken so far. Setting it belongs to filling the state tensors on resume.
  int64_t step_count() const { return steps_; }
  void set_step(int64_t steps) { steps_ = steps; }

 private:
  struct Range;
  void divide(nn::Buffer& shard, const std::function<Rule(const nn::ParameterSpec&)>& rule_of);
  Run make_run(const Range& range) const;
  void average();  // adds the masters
  std::vector<Run> runs_of(size_t update) const;

  std::vector<std::unique_ptr<Update>> updates_;
  std::vector<Range> ranges_;
  double ema_decay_;
  int64_t steps_ = 0;
  bool keeps_previous_ = false;
  bool can_undo_ = false;
};

// The optimizer that optimizer.name asks for, with optimizer.groups. Without make_exchange this rank holds
// all matrices whole; the biases that balance experts move by balance_rate. Throws UsageError that lists the
// names.
std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerSection& options,
                                          std::span<nn::Buffer* const> shards,
                                          const MakeMatrixExchange& make_exchange = {},
                                          double balance_rate = 0);

// The terms of the global gradient norm: the sum of squares of the slices' main gradients. For slices that
// together are a stage's parameters, the sum has the same bits however groups are divided. Waits for the
// device once.
kernels::ExactSum sum_of_squares(std::span<nn::Slice* const> slices);

}  // namespace pptrain::optim
