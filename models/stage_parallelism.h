// How other ranks take part in a stage: the one place that turns groups of ranks into what a stage's layers
// use.
#pragma once

#include <memory>

#include "core/attention/attention.h"
#include "core/config/word.h"
#include "core/data/tokens/context_split.h"
#include "core/nn/experts.h"
#include "core/nn/tensor_group.h"
#include "parallel/comm/communicator.h"

namespace pptrain::models {

using config::ContextKind;

// How rows are divided for it: balanced for the ring, in order for Ulysses, whose ranks see all tokens
// anyway.
tokens::ContextOrder order_of(ContextKind kind);

// The groups of this rank that its stages exchange with inside a pass; null if the rank is alone. All must
// outlive the stages.
struct StageGroups {
  comm::Communicator* tp = nullptr;
  comm::Communicator* cp = nullptr;
  comm::Communicator* ep = nullptr;
  comm::Communicator* stage = nullptr;  // all ranks that see a part of the same global microbatch, and tp
  ContextKind cp_kind = ContextKind::ring;
  bool deterministic = true;  // the backward pass of attention on a GPU
};

// By default a rank computes alone, with all of its tokens.
struct StageParallelism {
  // The tensor-parallel ranks: rows are sharded over them, and the inside of attention, dense MLP, embedding
  // and head.
  std::shared_ptr<const nn::TensorGroup> tp = std::make_shared<nn::TensorGroup>();
  std::shared_ptr<attention::CoreAttention> attention = attention::make_local_attention();
  std::shared_ptr<const nn::ExpertExchange> experts = std::make_shared<nn::ExpertExchange>();
  bool deterministic = true;  // for the attention of slices, which a stage puts around `attention`
};

// Throws Error for a group that no layer knows.
StageParallelism make_stage_parallelism(const StageGroups& groups);

}  // namespace pptrain::models
