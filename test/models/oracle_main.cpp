// The models and the optimizer as a program, for transformers_test.py and hf_facts_test.py:
//
//   model_oracle INPUT OUTPUT STAGES HF_DIR...
//   model_oracle facts HF_DIR...
//
// facts: writes [model] of each directory's config.json to job.toml in it, or the reason of a refusal to
// refused.txt.
//
// INPUT (safetensors): `tokens` and `labels`, int64 [steps, microbatches, batch, seq]; `filling`, bool, of
// that shape: tokens of no document; `lr`, `weight_decay`, float64 [1]; `losses`, float64 [2], the
// coefficients of the routers' balance loss and z-loss. Trains a step on each, in STAGES stages: each begins
// at the weights of its own Hugging Face directory, with the optimizer's state of the steps before. Writes to
// OUTPUT: `loss`, float64 [steps]: the mean over valid tokens before each step; `norm`, float64 [steps]: the
// global gradient norm before clipping at 1; `logits`, float32 [batch, seq, vocab], of the first microbatch,
// and `gradient.NAME`, by Hugging Face name, of the mean loss, both before the first step;
// `weight.STEP.NAME`: after each step.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/loader.h"
#include "core/io/safetensors.h"
#include "core/optim/optimizer.h"
#include "models/hf_config.h"
#include "models/hf_directory.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "models/transformer_stage.h"
#include "models/weight_map.h"
#include "parallel/pipeline/split_layers.h"
#include "test/support/end_process.h"
#include "test/support/ops.h"
#include "test/support/write_safetensors.h"

using namespace pptrain;
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

namespace {

class Model {
 public:
  Model(const models::ModelConfig& model, int stages, double weight_decay) {
    const auto assignment = pipeline::compute_layer_assignment(static_cast<int>(model.layers), stages);
    const config::OptimizerSection options{.weight_decay = weight_decay};
    tensors_ = models::hf_tensors(model);
    for (int i = 0; i < stages; ++i) {
      stages_.push_back(
          std::make_unique<models::TransformerStage>(model, models::stage_slice(assignment, i)));
      stages_.back()->materialise(at::kCPU, at::kFloat);
      optimizers_.push_back(optim::make_optimizer(options, stages_.back()->parameters().buffers()));
    }
  }

  void load(const std::string& hf_dir) {
    for (auto& stage : stages_) models::HfDirectory(stage->model(), hf_dir).load(*stage);
  }

  // [documents, longest, vocab]; all documents are of one length.
  at::Tensor logits(const data::Microbatch& data) {
    at::Tensor x;
    for (size_t i = 0; i + 1 < stages_.size(); ++i) x = stages_[i]->forward_only(data, std::move(x));
    return stages_.back()
        ->logits(data, std::move(x), {})
        .view({data.segments.documents(), data.segments.longest, -1});
  }

  // Gradients of the sum over `microbatches`, one after the other as 1F1B does.
  double run(const std::vector<data::Microbatch>& microbatches) {
    for (auto& stage : stages_) stage->parameters().zero_grad();
    for (int i = 0; i < static_cast<int>(microbatches.size()); ++i) {
      at::Tensor x;
      for (auto& stage : stages_) x = stage->forward(i, microbatches[i], std::move(x));
      for (size_t s = stages_.size(); s-- > 0;) x = stages_[s]->backward(i, std::move(x));
    }
    if (stages_.front()->tied()) {
      at::Tensor& embedding = stages_.front()->embedding_weight()->grad;
      embedding.add_(stages_.back()->head_weight()->grad);
      stages_.back()->head_weight()->grad.copy_(embedding);
    }
    return stages_.back()->take_loss();
  }

  void add_gradients(NamedTensors& output, int64_t tokens) {
    add(output, "gradient.",
        [&](const nn::Slice& parameter) { return parameter.grad / static_cast<double>(tokens); });
  }

  void add_weights(NamedTensors& output, int64_t step) {
    add(output, "weight." + std::to_string(step) + ".",
        [](const nn::Slice& parameter) { return parameter.master; });
  }

  double gradient_norm() {
    std::vector<nn::Slice*> counted;
    for_each([&](nn::Slice& parameter) {
      if (parameter.spec.role != nn::Role::balance) counted.push_back(&parameter);
    });
    return std::sqrt(optim::sum_of_squares(counted).rounded());
  }

  // Throws Error if a tied head's weights then differ from the embedding's.
  void step(double lr, double grad_scale) {
    for (auto& optimizer : optimizers_) optimizer->step(lr, grad_scale);
    if (stages_.front()->tied() &&
        !at::equal(stages_.front()->embedding_weight()->compute, stages_.back()->head_weight()->compute)) {
      throw Error("after a step the tied head is no longer the embedding");
    }
  }

 private:
  // The tensors of a Hugging Face directory that hold `value_of` each parameter.
  template <class ValueOf>
  void add(NamedTensors& output, const std::string& prefix, const ValueOf& value_of) {
    std::map<std::string, at::Tensor> values;
    for_each([&](const nn::Slice& parameter) { values[parameter.spec.name] = value_of(parameter); });
    for (const models::HfTensor& tensor : tensors_) {
      const at::Tensor whole = at::full(tensor.shape, NAN, at::kFloat);
      for (const models::HfWeight& part : tensor.parts) {
        const at::Tensor place = part.view_of(whole);
        place.copy_(values.at(part.parameter).reshape(place.sizes()));
      }
      output.emplace_back(prefix + tensor.name, whole);
    }
  }

  template <class Visit>
  void for_each(const Visit& visit) {
    for (auto& stage : stages_) {
      for (nn::Slice* slice : stage->parameters().slices()) {
        if (stage->tied() && slice->spec.name == "head.weight") continue;
        visit(*slice);
      }
    }
  }

  std::vector<models::HfTensor> tensors_;
  std::vector<std::unique_ptr<models::TransformerStage>> stages_;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers_;
};

std::vector<data::Microbatch> microbatches_of(const at::Tensor& tokens, const at::Tensor& labels,
                                              const at::Tensor& filling) {
  std::vector<data::Microbatch> result;
  for (int64_t i = 0; i < tokens.size(0); ++i) {
    const int64_t batch = tokens.size(1);
    const int64_t seq = tokens.size(2);
    const int64_t padding = filling[i].sum().item<int64_t>();
    result.push_back({.tokens = tokens[i].reshape({-1}),
                      .labels = labels[i].reshape({-1}),
                      .positions = at::arange(seq, at::kInt).repeat({batch}),
                      .filling = padding > 0 ? filling[i].reshape({-1}) : at::Tensor(),
                      .segments = tokens::equal_segments(batch, seq, at::kCPU),
                      .targets = labels[i].ne(data::ignore_label).sum().item<int64_t>(),
                      .global_tokens = batch * seq - padding,
                      .global_targets = labels[i].ne(data::ignore_label).sum().item<int64_t>()});
  }
  return result;
}

void train(const std::string& input_path, const std::string& output_path, int stages,
           const std::vector<std::string>& hf_dirs) {
  const io::SafetensorsReader input(input_path);
  const at::Tensor tokens = input.view("tokens");
  const at::Tensor labels = input.view("labels");
  const at::Tensor filling = input.view("filling");
  const double lr = input.view("lr").item<double>();
  config::ModelSection section = models::read_hf_config(hf_dirs.front());
  section.router_aux_loss_coef = input.view("losses")[0].item<double>();
  section.router_z_loss_coef = input.view("losses")[1].item<double>();
  Model model(models::make_model_config(section, tokens.size(3)), stages,
              input.view("weight_decay").item<double>());
  NamedTensors output;
  const at::Tensor losses = at::empty({tokens.size(0)}, at::kDouble);
  const at::Tensor norms = at::empty({tokens.size(0)}, at::kDouble);
  for (int64_t step = 0; step < tokens.size(0); ++step) {
    model.load(hf_dirs.at(step));
    const auto microbatches = microbatches_of(tokens[step], labels[step], filling[step]);
    if (step == 0) output.emplace_back("logits", model.logits(microbatches.front()));
    const double loss = model.run(microbatches);
    const auto valid_tokens = labels[step].ne(data::ignore_label).sum().item<int64_t>();
    const auto valid = static_cast<double>(valid_tokens);
    const double norm = model.gradient_norm() / valid;
    losses[step] = loss / valid;
    norms[step] = norm;
    if (step == 0) model.add_gradients(output, valid_tokens);
    model.step(lr, std::min(1.0, 1.0 / (norm + 1e-6)) / valid);
    model.add_weights(output, step);
  }
  output.emplace_back("loss", losses);
  output.emplace_back("norm", norms);
  test::write_safetensors(output_path, output);
}

void write_facts(const std::string& hf_dir) {
  try {
    config::JobConfig job;
    job.model = models::read_hf_config(hf_dir);
    std::ofstream(hf_dir + "/job.toml") << config::to_toml(job);
  } catch (const UsageError& error) {
    std::ofstream(hf_dir + "/refused.txt") << error.what();
  }
}

int run(int argc, char** argv) {
  const bool facts = argc > 2 && std::string(argv[1]) == "facts";
  if (!facts && argc < 5) {
    std::fprintf(stderr, "usage: %s INPUT OUTPUT STAGES HF_DIR... | facts HF_DIR...\n", argv[0]);
    return 2;
  }
  try {
    if (facts) {
      std::for_each(argv + 2, argv + argc, write_facts);
      return 0;
    }
    at::set_num_threads(1);
    const c10::InferenceMode inference;
    train(argv[1], argv[2], std::atoi(argv[3]), {argv + 4, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  pptrain::test::end_process(run(argc, argv));
}
