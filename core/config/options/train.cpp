// The options of [train].
#include <vector>

#include "core/config/options/sections.h"

namespace pptrain::config {
namespace {

void add_divergence(const SectionFields<TrainSection>& train) {
  const auto watch = train.only_if("train.divergence_steps > 0", {"train.divergence_steps"},
                                   [](const JobConfig& j) { return j.train.divergence_steps > 0; });
  train("divergence_steps", &TrainSection::divergence_steps,
        "Ends the run with a report (exit code 1) after this many steps in a row with a loss above its band. "
        "The state is saved as checkpoints/diverged_step_N; no start resumes from it by itself. During such "
        "steps no checkpoint is deleted. 0: off.")
      .between(0, max_steps);
  watch("divergence_window", &TrainSection::divergence_window,
        "Number of losses from which the band is computed: the latest losses that were not above it. Until "
        "there are so many losses, none is above the band.")
      .between(8, 1024);
  watch("divergence_band", &TrainSection::divergence_band,
        "Height of the band above the losses' median, in deviations. A deviation is 1.4826 times the losses' "
        "median absolute deviation (the standard deviation for normal noise), and at least 0.1 % of the "
        "median.")
      .above_up_to(0, 1e6);
  watch(
      "max_rollbacks", &TrainSection::max_rollbacks,
      "Instead of ending, a run whose loss left its band goes back to its newest state from before that, and "
      "skips the samples that led there, at most so many times. rollbacks.json and the log name them. 0: "
      "it ends.")
      .between(0, 1000);
}

}  // namespace

void add_train(std::vector<Option>& options) {
  SectionFields<TrainSection> train(options, "train", [](JobConfig& j) -> TrainSection& { return j.train; });
  train("steps", &TrainSection::steps, "Optimizer steps of the whole run, including those before a resume.")
      .between(1, max_steps);
  train("seq_len", &TrainSection::seq_len, "Tokens of a sample.")
      .between(1, max_size)
      .required()
      .decides(Effect::data);
  train("micro_batch_size", &TrainSection::micro_batch_size, "Samples of a microbatch.")
      .between(1, max_size)
      .decides(Effect::layout);
  train("grad_accum_steps", &TrainSection::grad_accum_steps,
        "Microbatches per step on each data rank. A step has dp_replicate * dp_shard * grad_accum_steps * "
        "micro_batch_size samples. [[train.grad_accum_schedule]] changes it at later steps.")
      .between(1, max_size)
      .decides(Effect::layout);
  train("dtype", &TrainSection::dtype,
        "Type of weights and activations in the passes; master weights, gradients and optimizer state are "
        "fp32.")
      .refuse("fp16", "fp16 is refused: use bf16")
      .refuse("float16", "fp16 is refused: use bf16")
      .refuse("half", "fp16 is refused: use bf16")
      .refuse("fp8", "FP8 has a key of its own: set train.fp8 = \"rowwise\"")
      .refuse("float8", "FP8 has a key of its own: set train.fp8 = \"rowwise\"");
  train("fp8", &TrainSection::fp8,
        "rowwise: linear layers of attention and of MLPs multiply E4M3 by E4M3, in the forward pass and for "
        "the gradients of their inputs, with a power of two as scale for each token and each row or column "
        "of a weight. Weight gradients, embedding, head, norms, router, experts and attention itself stay in "
        "bf16. Needs train.dtype = \"bf16\" and widths that are multiples of 16. Twice as fast as bf16 by "
        "the tensor cores of GPUs from Ada and Hopper on; CPUs compute the same numbers, more slowly than "
        "bf16. rowwise_all: weight gradients too, with a scale for each feature over a microbatch's tokens; "
        "on CPUs alone, to try what it does to learning.")
      .only_with("train.dtype", {"bf16"})
      .refuse("tensorwise", "one scale a tensor is refused: it would depend on the layout. Use rowwise")
      .refuse("delayed",
              "scales from earlier steps are refused: they would be state of a layout. Use rowwise")
      .refuse("blockwise", "scales for blocks are refused: use rowwise")
      .refuse("mxfp8", "MXFP8 is refused: use rowwise")
      .refuse("hybrid", "E5M2 gradients are refused: use rowwise, which multiplies E4M3 by E4M3");
  train(
      "recompute", &TrainSection::recompute,
      "Activations that are recomputed in the backward pass instead of saved; the bits are the same, unless "
      "data.balance is \"schedule\". none: "
      "all are saved. cheap: the norms' outputs and the MLP's product of gate and up, which need no GEMM. "
      "selective: the norms' outputs and the MLP's inner activations. full: all but each block's input. "
      "auto: cheap on GPUs, none on CPUs. With pp_schedule = \"auto\" or \"search\", auto recomputes more "
      "on stages that do not fit, and less if a searched order has memory left. On stages that recompute "
      "more, microbatches with memory left recompute less; each step chooses them if data.lengths is exact "
      "or padded. A list has a word for each stage, first to last. \"full:3/cheap:2\" repeats: full for "
      "three microbatches (or sequence slices), then cheap for two.")
      .one_of({"auto", "none", "cheap", "selective", "full"})
      .or_runs()
      .alone_in_list("auto")
      .decides(Effect::layout);
  train("overlap_weight_gradients", &TrainSection::overlap_weight_gradients,
        "Computes weight gradients on a second GPU stream, so that they overlap with norms, SwiGLU and "
        "rotary passes of the next layer's backward pass. The bits are the same. Both operands of each "
        "weight gradient of a block are held until the next block is done. No effect on CPUs or with tp > 1.")
      .decides(Effect::layout);
  train("grad_clip", &TrainSection::grad_clip,
        "Scales gradients down to this global norm over all stages and ranks. 0: off.")
      .at_least(0);
  train("label_smoothing", &TrainSection::label_smoothing,
        "Fraction of each target that is spread evenly over the vocabulary in the training loss, as in "
        "PyTorch's cross_entropy(label_smoothing). The validation loss does not use it.")
      .from_up_to(0, 1);
  train(
      "z_loss", &TrainSection::z_loss,
      "Adds this times the square of each token's logsumexp over the vocabulary to the training loss, which "
      "keeps logits near 0 (PaLM: 1e-4). The validation loss does not use it.")
      .at_least(0);
  train("max_skipped_steps", &TrainSection::max_skipped_steps,
        "Steps in a row that may be skipped for a non-finite loss or norm; one more ends the run. 0: the "
        "first ends it.")
      .between(0, max_steps);
  add_divergence(train);
  train("check_weights", &TrainSection::check_weights,
        "Checks that master weights and optimizer state do not change between optimizer steps. Checksums are "
        "taken after each step and compared before the next step and before a checkpoint. A flipped bit ends "
        "the run with its parameter's name; nothing is saved. Costs two reads of these bytes per step.");
  train("deterministic", &TrainSection::deterministic,
        "true: on GPUs, the same job gives the same bits in each run, also on other pipeline layouts. "
        "Attention's backward pass adds in a fixed order, and LibTorch operators without a fixed order are "
        "refused. false: the fastest attention; losses differ in their last digits between runs. CPUs always "
        "give the same bits.")
      .only_with("run.device", {"cuda"});
}

TableList batch_steps() {
  const Access<std::vector<BatchStep>> steps = [](JobConfig& j) -> std::vector<BatchStep>& {
    return j.train.grad_accum_schedule;
  };
  TableList list = make_table_list<BatchStep>(
      "train.grad_accum_schedule",
      "Steps at which the number of microbatches changes. Learning rate and train.steps count steps as "
      "before. pptrain plan predicts the first steps. Needs a schedule with a name, and excludes "
      "pp_head = \"spread\", data.balance = \"schedule\", post_validation and profile.trace.",
      steps);
  SectionFields<BatchStep> step(list.fields, list.section,
                                [steps](JobConfig& j) -> BatchStep& { return steps(j).front(); });
  step("from_step", &BatchStep::from_step,
       "The first step with this number of microbatches. A run's first step is 1; entries ascend.")
      .between(2, max_steps)
      .required();
  step("grad_accum_steps", &BatchStep::grad_accum_steps,
       "Microbatches per step on each data rank, from that step on.")
      .between(1, max_size)
      .required();
  return list;
}

}  // namespace pptrain::config
