// Microbatches of packed documents through real stages give the sums of documents run alone, and need no more
// memory than full rows.
#include <c10/core/InferenceMode.h>

#include <memory>
#include <random>
#include <vector>

#include "app/forecast/footprint.h"
#include "core/data/data_loader.h"
#include "core/data/microbatch.h"
#include "core/kernels/dry_run.h"
#include "parallel/comm/dry/dry_communicator.h"
#include "test/core/data/token_files.h"
#include "test/core/kernels/compare.h"
#include "test/models/small_model.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::test;
using at::Tensor;

namespace {

// Runs forward and backward through all stages; returns the loss.
double run(Stages& stages, const data::Microbatch& microbatch) {
  Tensor x;
  for (auto& stage : stages) x = stage->forward(0, microbatch, std::move(x));
  Tensor dy;
  for (size_t i = stages.size(); i-- > 0;) dy = stages[i]->backward(0, std::move(dy));
  return stages.back()->take_loss();
}

std::vector<Tensor> gradients(Stages& stages) {
  std::vector<Tensor> all;
  for (auto& stage : stages) {
    for (const nn::Slice* slice : stage->parameters().slices()) all.push_back(slice->grad.clone());
  }
  return all;
}

// One document of a microbatch as its own microbatch, without padding.
data::Microbatch alone(const data::Microbatch& all, int64_t document, int64_t tokens) {
  const int64_t first = all.segments.first(document);
  return {.tokens = all.tokens.narrow(0, first, tokens),
          .labels = all.labels.narrow(0, first, tokens),
          .positions = all.positions.narrow(0, first, tokens),
          .segments = tokens::make_segments({0, static_cast<int32_t>(tokens)}, at::kCPU),
          .targets = all.targets,
          .global_tokens = tokens,
          .global_targets = all.global_targets};
}

// Frequencies differ from 7 tokens on.
config::RopeScaling by_length(config::RopeType type) {
  return {.rope_type = type,
          .factor = 3,
          .original_max_position_embeddings = 6,
          .short_factor = std::vector<double>(8, 1.0),
          .long_factor = {1, 2, 3, 4, 5, 6, 7, 8}};
}

// Long-tailed documents, each ended by 1; no other id below 2.
std::vector<uint16_t> corpus(int64_t vocab) {
  std::mt19937 random(2);
  std::lognormal_distribution<double> length(2, 1);
  std::vector<uint16_t> ids;
  for (int d = 0; d < 60; ++d) {
    for (int i = static_cast<int>(length(random)); i > 0; --i)
      ids.push_back(static_cast<uint16_t>(2 + random() % static_cast<uint32_t>(vocab - 2)));
    ids.push_back(1);
  }
  return ids;
}

}  // namespace

TEST_CASE("loss and gradients of packed documents are the sums over documents run alone") {
  const c10::InferenceMode inference;
  models::ModelConfig model = small_model("llama", false);
  const auto type = GENERATE(config::RopeType::llama3, config::RopeType::longrope, config::RopeType::dynamic);
  if (type != config::RopeType::llama3) model.rope_scaling = by_length(type);
  if (type == config::RopeType::dynamic) model.max_positions = 6;
  const int64_t seq = std::min<int64_t>(16, model.max_seq);
  const ScratchFolder folder;
  const data::TokenDataset dataset({{write_ids(folder, "t.bin", corpus(model.vocab))}, data::Format::bin, 2},
                                   model.vocab);
  Stages packed = build_stages(model, {2, 2}, at::kFloat, 3),
         single = build_stages(model, {2, 2}, at::kFloat, 3);
  for (const data::Packing packing :
       {data::Packing::none, data::Packing::sequential, data::Packing::best_fit}) {
    for (const data::Lengths lengths : {data::Lengths::fixed, data::Lengths::exact, data::Lengths::padded}) {
      CAPTURE(static_cast<int>(packing), static_cast<int>(lengths));
      const data::DataLoader loader(dataset,
                                    {.seq_len = seq,
                                     .micro_batch_size = 3,
                                     .microbatches = 2,
                                     .document_end = 1,
                                     .packing = packing,
                                     .lengths = lengths,
                                     .pad_to_multiple_of = 8},
                                    true, 1);
      for (auto* stages : {&packed, &single}) {
        for (auto& stage : *stages) stage->parameters().zero_grad();
      }
      double together = 0, apart = 0;
      int64_t documents = 0;
      for (const data::Microbatch& microbatch : loader.step(0).microbatches) {
        together += run(packed, microbatch);
        for (int64_t d = 0; d < microbatch.segments.documents(); ++d) {
          const int64_t first = microbatch.segments.first(d), length = microbatch.segments.length(d);
          int64_t own = 0;
          while (own < length && microbatch.tokens[first + own].item<int64_t>() != 0) ++own;
          if (own == 0) continue;
          apart += run(single, alone(microbatch, d, own));
          ++documents;
        }
      }
      CHECK(documents > 6 - (packing == data::Packing::none ? 1 : 0));
      CHECK(relative_error(together, apart) <= 1e-6);
      const std::vector<Tensor> a = gradients(packed), b = gradients(single);
      for (size_t i = 0; i < a.size(); ++i) {
        CHECK(b[i].norm().item<double>() > 0);
        CHECK(relative_error(a[i], b[i]) <= gradient_tolerance);
      }
    }
  }
}

namespace {

struct Bytes {
  int64_t activation = 0, weight_operands = 0, boundary = 0;
  int64_t forward = 0, backward = 0;  // at the peak of the pass, with its saved activations
};

// The bytes that one stage's passes hold for a list of documents, on the first of `cp` ranks.
Bytes held(const models::ModelConfig& model, config::Recompute recompute, std::vector<int32_t> starts, int cp,
           models::ContextKind kind) {
  const c10::InferenceMode inference;
  const auto group = comm::make_dry(kernels::Wire::cp, 0, cp);
  models::TransformerStage stage(
      model, {.index = 0, .first_layer = 0, .end_layer = 2, .embedding = true, .head = true},
      models::make_stage_parallelism({.cp = group.get(), .cp_kind = kind}));
  stage.recompute_by_microbatch({recompute});
  stage.materialise(at::kMeta, at::kBFloat16);
  stage.size_chunks_for(at::kCPU);
  const int64_t tokens = starts.back();
  data::Microbatch data{.tokens = {},
                        .labels = {},
                        .positions = {},
                        .segments = tokens::make_segments(std::move(starts), at::kMeta),
                        .targets = tokens,
                        .global_tokens = tokens,
                        .global_targets = tokens};
  if (cp > 1) {
    data.context = std::make_shared<const tokens::ContextSplit>(
        tokens::split_list(models::order_of(kind), tokens, cp, 0));
  }
  const auto list = at::TensorOptions().device(at::kMeta);
  data.tokens = at::empty({data.token_count()}, list.dtype(at::kLong));
  data.labels = at::empty({data.token_count()}, list.dtype(at::kLong));
  data.positions = at::empty({data.token_count()}, list.dtype(at::kInt));
  Bytes bytes;
  kernels::DryRun dry;
  stage.forward(0, data, {});
  bytes.boundary = static_cast<int64_t>(stage.empty_boundary(data).nbytes());
  bytes.activation = stage.saved_bytes();
  bytes.forward = dry.peak_bytes();
  dry.reset_peak();
  stage.backward_input(0, {});
  bytes.backward = dry.peak_bytes();
  bytes.weight_operands = stage.pending_bytes();
  return bytes;
}

}  // namespace

TEST_CASE("no list of documents takes more memory than full rows, for which memory is predicted") {
  const int cp = GENERATE(1, 2);
  const auto kind = GENERATE(models::ContextKind::ring, models::ContextKind::ulysses);
  const auto recompute = GENERATE(config::Recompute::none, config::Recompute::full);
  models::ModelConfig model = small_model("llama", false);
  model.max_seq = 64;
  model.heads = 4;  // Ulysses divides them
  model.kv_heads = 2;
  constexpr int32_t rows = 3, seq = 64;
  const Bytes full = held(model, recompute, {0, seq, 2 * seq, 3 * seq}, cp, kind);
  std::mt19937 random(5);
  for (int i = 0; i < 30; ++i) {
    std::vector<int32_t> starts{0};
    const int32_t tokens = i < 10 ? rows * seq : 8 + static_cast<int32_t>(random() % (rows * seq - 8));
    while (starts.back() < tokens) {
      const int32_t length = 1 + static_cast<int32_t>(random() % (i % 3 == 0 ? 6 : seq));
      starts.push_back(std::min(tokens, starts.back() + length));
    }
    const Bytes own = held(model, recompute, starts, cp, kind);
    CAPTURE(cp, static_cast<int>(kind), static_cast<int>(recompute), tokens, starts.size());
    CHECK(own.activation <= full.activation);
    CHECK(own.weight_operands <= full.weight_operands);
    // In proportion to the tokens, up to one row more or less per rank.
    CHECK(own.activation * rows * seq <= full.activation * (tokens + 2 * cp));
    CHECK(own.weight_operands * rows * seq <= full.weight_operands * (tokens + 2 * cp));
    CHECK(own.boundary <= full.boundary);
    CHECK(own.forward <= full.forward);
    CHECK(own.backward <= full.backward);
  }
}
