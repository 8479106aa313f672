// The options of [optimizer] and [[optimizer.groups]].
#include <vector>

#include "core/config/options/sections.h"

namespace pptrain::config {

void add_optimizer(std::vector<Option>& options) {
  SectionFields<OptimizerSection> optimizer(options, "optimizer",
                                            [](JobConfig& j) -> OptimizerSection& { return j.optimizer; });
  const auto muon = optimizer.only_with("optimizer.name", {"muon"});
  const auto moments = optimizer.only_with("optimizer.name", {"adamw", "lion"});
  optimizer(
      "name", &OptimizerSection::name,
      "adamw. muon: Muon for the blocks' matrices, AdamW for embedding, head, norms, biases and routers. "
      "lion: use lr 3 to 10 times below AdamW's, weight_decay as many times above, and betas [0.9, 0.99].")
      .one_of({"adamw", "muon", "lion"})
      .decides(Effect::model);
  optimizer("lr", &OptimizerSection::lr, "Highest learning rate.").at_least(0);
  optimizer("betas", &OptimizerSection::betas,
            "Decay of the first and second moments; in lion, of its update direction and its moment.")
      .of_length(2)
      .from_up_to(0, 1);
  optimizer("eps", &OptimizerSection::eps, "Added to the root of the second moment.")
      .above(0)
      .only_with("optimizer.name", {"adamw", "muon"});
  optimizer("weight_decay", &OptimizerSection::weight_decay,
            "Decoupled decay, multiplied by the learning rate; none on norms and biases.")
      .at_least(0);
  muon("muon_momentum", &OptimizerSection::muon_momentum, "Decay of Muon's momentum (Nesterov's).")
      .from_up_to(0, 1);
  muon("muon_lr_scale", &OptimizerSection::muon_lr_scale,
       "Learning rate of Muon's matrices divided by lr. Muon's steps are scaled by 0.2 sqrt(max(rows, "
       "columns)) to AdamW's usual size, so 1 works.")
      .above(0);
  muon("muon_weight_decay", &OptimizerSection::muon_weight_decay,
       "Replaces weight_decay for Muon's matrices.")
      .at_least(0);
  moments("state_dtype", &OptimizerSection::state_dtype,
          "Type of the moments. bf16: half of the memory. A step computes in fp32 and rounds the new moments "
          "stochastically, so that their mean is kept. The random bits depend only on the parameter's name, "
          "the element and the step, so the bits are equal on every layout.")
      .decides(Effect::model);
  optimizer(
      "ema_decay", &OptimizerSection::ema_decay,
      "Keeps an exponential moving average of the weights in fp32 (4 bytes per parameter), with this "
      "decay per step, at most (1 + step) / (10 + step). Checkpoints hold it, and pptrain convert --ema "
      "exports it. 0: off.")
      .from_up_to(0, 1);
  optimizer("post_validation", &OptimizerSection::post_validation,
            "Ranks update weights without waiting for the global norm and begin the next step (zero bubble's "
            "post-validation). A step that needed clipping or skipping is rolled back and redone, with the "
            "same bits. Removes the rest of the bubble of zb_h2 and zbv if clipping is rare. Costs a second "
            "copy of master weights and optimizer state (12 bytes per parameter with adamw).")
      .decides(Effect::layout);
}

TableList optimizer_groups() {
  const Access<std::vector<OptimizerGroup>> groups = [](JobConfig& j) -> std::vector<OptimizerGroup>& {
    return j.optimizer.groups;
  };
  TableList list = make_table_list<OptimizerGroup>(
      "optimizer.groups",
      "Parameters with settings of their own. A parameter is in the first group that matches it.", groups);
  SectionFields<OptimizerGroup> group(
      list.fields, list.section, [groups](JobConfig& j) -> OptimizerGroup& { return groups(j).front(); });
  group("match", &OptimizerGroup::match,
        "Pattern for names of parameters, such as \"*.norm*\" or \"layers.0.*\" (* matches any characters), "
        "or a role: matrix, embedding, head, norm, bias or router. A tied head is in the embedding's group.")
      .required();
  group("lr_scale", &OptimizerGroup::lr_scale, "Factor on the learning rate.").at_least(0);
  group("weight_decay", &OptimizerGroup::weight_decay, "Replaces weight_decay, also for norms and biases.")
      .at_least(0);
  group("frozen", &OptimizerGroup::frozen,
        "The group's parameters do not learn. They have no gradients and no optimizer state, and are held "
        "only in train.dtype. Checkpoints name their source (model.hf_dir or run.seed) instead of their "
        "values.");
  return list;
}

}  // namespace pptrain::config
