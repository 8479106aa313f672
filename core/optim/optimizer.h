// What the trainer and the checkpoint writer know of an optimizer, and what every optimizer shares: its state
// lies as the shards' buffers do, and a step can be taken back.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "core/nn/parameter.h"

namespace pptrain::optim {

// A slice's part of one kind of state, as checkpoints name it: by the parameter it belongs to, within a file
// per kind.
struct StateTensor {
  std::string file;  // "adamw.exp_avg"
  const nn::Slice* slice;
  at::Tensor tensor;  // float32, as slice->master: the state itself, to be read or filled
};

// What a step takes, for predictions: bytes of each parameter that this rank answers for.
struct OptimizerFootprint {
  int64_t state = 0;     // the state, held between steps
  int64_t previous = 0;  // the copy of masters and state that keep_previous() holds
  double moved = 0;      // what a step reads and writes
  double kept = 0;       // what a step writes besides, with keep_previous()

  int64_t held_bytes(bool keeps_previous) const { return state + (keeps_previous ? previous : 0); }
  double moved_bytes(bool keeps_previous) const { return moved + (keeps_previous ? kept : 0); }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One step of every slice at this learning rate, by its main gradient times grad_scale. Masters and this
  // rank's compute weights are new afterwards; gradients are left as they are.
  void step(double lr, double grad_scale);

  std::vector<StateTensor> state();

  // From now on each step keeps what it overwrites, for undo(): masters and state once more.
  void keep_previous();
  // Takes the last step back, bit for bit: masters, compute weights, state and step count. Once after a step;
  // only with keep_previous(), which must have come before that step. Throws Error otherwise.
  void undo();

  // Steps taken so far. Setting it belongs to filling the state tensors on resume.
  int64_t step_count() const { return steps_; }
  void set_step(int64_t steps) { steps_ = steps; }

 protected:
  // Masters and state of neighbouring slices, flat, in one order.
  struct Buffers {
    at::Tensor master;
    std::vector<at::Tensor> state;
  };
  // Neighbouring slices of one shard that are stepped alike, the gaps between them included.
  struct Run {
    Buffers now;
    at::Tensor grad;
    std::optional<at::Tensor> compute;  // bfloat16: receives the new masters rounded
    std::optional<Buffers> previous;    // receives what is overwritten, if keeps_previous_itself()
    double weight_decay = 0;
  };
  struct StepArguments {
    double lr = 0;
    double grad_scale = 1;
    int64_t step = 1;  // counted from 1
  };

  // `state_files`: one float32 value per parameter in each. The shards must be materialised with gradients
  // (throws Error otherwise) and outlive this.
  Optimizer(std::vector<nn::Shard*> shards, std::vector<std::string> state_files, double weight_decay);

  virtual void update(Run& run, const StepArguments& arguments) = 0;
  // True where update() writes what it overwrites to run.previous, which is cheaper than a copy beforehand.
  virtual bool keeps_previous_itself() const { return false; }

 private:
  struct Range {
    size_t shard;
    int64_t offset, size;
    bool decays;
  };
  Run make_run(const Range& range) const;
  Buffers changing(size_t shard) const;  // what a step changes

  std::vector<nn::Shard*> shards_;
  std::vector<std::string> state_files_;
  double weight_decay_;
  std::vector<Range> ranges_;
  std::vector<std::vector<at::Tensor>> state_;  // [shard][file]
  std::vector<Buffers> previous_;               // [shard]; empty unless they are kept
  int64_t steps_ = 0;
  bool can_undo_ = false;
};

// The optimizer that optimizer.name asks for. Throws UsageError that lists the names.
std::unique_ptr<Optimizer> make_optimizer(const config::OptimizerSection& options,
                                          std::vector<nn::Shard*> shards);
OptimizerFootprint optimizer_footprint(const config::OptimizerSection& options);

}  // namespace pptrain::optim
