#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <spdlog/fmt/fmt.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "core/attention/blocks.h"
#include "core/kernels/dry_run.h"
#include "parallel/axes/context/context_attention.h"
#include "parallel/axes/context/plans.h"
#include "parallel/comm/hand_over.h"
#include "parallel/comm/links.h"

namespace pptrain::context {
namespace {

using at::Tensor;
using attention::AttentionCall;
using attention::BackEnd;
using attention::CoreAttention;
using attention::Gradients;
using attention::Saved;
using WorkPtr = std::unique_ptr<comm::Work>;

void wait(const WorkPtr& work, const char* what, int step) {
  if (work) work->wait([&] { return fmt::format("{} of step {} of ring attention", what, step); });
}

// Keys and values on their way around the ring: [2, tokens, kv_heads, head_dim], at first this rank's.
class TravellingKeys {
 public:
  TravellingKeys(comm::Communicator& group, const tokens::ContextSplit& split, const RingPlan& plan,
                 const Tensor& k, const Tensor& v)
      : group_(group), split_(split), plan_(plan), k_(k), v_(v) {
    if (plan_.steps_count() == 1) return;
    here_ = at::empty({2, k.size(0), k.size(1), k.size(2)}, k.options());
    here_.select(0, 0).copy_(k);
    here_.select(0, 1).copy_(v);
    kernels::record(kernels::moving(k, v, here_));
    set_views();
  }

  const Tensor& k() const { return k_; }
  const Tensor& v() const { return v_; }

  // Sends on the present keys, and receives those that the next step needs.
  void begin_hop(int step) {
    if (step + 1 >= plan_.steps_count()) return;
    next_ =
        at::empty({2, split_.tokens(plan_.owner(step + 1)), here_.size(2), here_.size(3)}, here_.options());
    receive_ = group_.irecv(next_, plan_.owner(1));
    send_ = group_.isend(here_, plan_.user(1));
  }
  void finish_hop(int step) {
    if (step + 1 >= plan_.steps_count()) return;
    comm::hand_over();
    wait(receive_, "the keys", step + 1);
    wait(send_, "the rank that takes the keys", step);
    here_ = std::move(next_);
    set_views();
  }

 private:
  void set_views() {
    k_ = here_.select(0, 0);
    v_ = here_.select(0, 1);
  }

  comm::Communicator& group_;
  const tokens::ContextSplit& split_;
  const RingPlan& plan_;
  Tensor here_, next_, k_, v_;
  WorkPtr receive_, send_;
};

// Gradients of keys and values that ranks find for each other: [2, tokens, kv_heads, head_dim], float32.
class GradientsOnTheirWay {
 public:
  GradientsOnTheirWay(comm::Communicator& group, const RingPlan& plan, Tensor home)
      : group_(group), plan_(plan), home_(std::move(home)) {}

  // Sends `found` (undefined: nothing) to the owner of the step's keys, and receives what the step's user of
  // this rank's keys found. Adds what came in the step before.
  void exchange(int step, Tensor found) {
    finish();
    step_ = step;
    if (plan_.used[static_cast<size_t>(step)]) {
      incoming_ = at::empty_like(home_);
      receive_ = group_.irecv(incoming_, plan_.user(step));
    }
    if (found.defined()) send_ = group_.isend(found, plan_.owner(step));
  }

  void finish() {
    if (receive_) {
      wait(receive_, "the gradients of own keys", step_);
      home_.add_(incoming_);
      kernels::record(kernels::moving(home_, home_, incoming_));
    }
    wait(send_, "the rank that takes the gradients", step_);
    receive_.reset();
    send_.reset();
    incoming_.reset();
  }

 private:
  comm::Communicator& group_;
  const RingPlan& plan_;
  Tensor home_, incoming_;
  WorkPtr receive_, send_;
  int step_ = 0;
};

// Data ranks have other documents, which may need fewer hops, but must hand over as often: weights and
// experts' rows that they exchange in passes would meet those of the other half of a pair.
void hand_over_for_missing_hops(const RingPlan& plan, int ranks) {
  for (int step = plan.steps_count(); step < ranks; ++step) comm::hand_over();
}

class RingAttention final : public CoreAttention {
 public:
  RingAttention(comm::Communicator& group, bool deterministic)
      : group_(group),
        deterministic_(deterministic),
        local_(attention::make_local_attention(deterministic)) {}

  Tensor forward(AttentionCall call, Saved& saved) override {
    if (!call.split) return local_->forward(std::move(call), saved);
    attention::require_taken(BackEnd::ring, call);
    check_split(call, group_.rank(), group_.size());
    call.deterministic = deterministic_;
    call.sinks = attention::copy_sinks(call);
    const std::shared_ptr<const RingPlan> kept = plan_of(call);
    const RingPlan& plan = *kept;
    TravellingKeys keys(group_, *call.split, plan, call.k, call.v);
    attention::PartialAttention seen = attention::no_attention(call);
    for (int step = 0; step < plan.steps_count(); ++step) {
      keys.begin_hop(step);
      attention::add_attention(with_keys(call, keys), plan.steps[static_cast<size_t>(step)], seen);
      keys.finish_hop(step);
    }
    hand_over_for_missing_hops(plan, group_.size());
    return attention::finish_attention(std::move(call), std::move(seen), saved);
  }

  Gradients backward(const Tensor& dout, Saved saved) override {
    if (!saved.call.split) return local_->backward(dout, std::move(saved));
    const AttentionCall& own = saved.call;
    const std::shared_ptr<const RingPlan> kept = plan_of(own);
    const RingPlan& plan = *kept;
    const auto f32 = own.q.options().dtype(at::kFloat);
    const auto gradients_of = [&](int rank) {
      return at::zeros({2, own.split->tokens(rank), own.k.size(1), own.k.size(2)}, f32);
    };
    const Tensor dq = at::zeros(own.q.sizes(), f32);
    const Tensor home = gradients_of(plan.rank);
    TravellingKeys keys(group_, *own.split, plan, own.k, own.v);
    GradientsOnTheirWay others(group_, plan, home);
    for (int step = 0; step < plan.steps_count(); ++step) {
      keys.begin_hop(step);
      const auto& blocks = plan.steps[static_cast<size_t>(step)];
      Tensor found;
      if (!blocks.empty()) {
        found = step == 0 ? home : gradients_of(plan.owner(step));
        Gradients grads{.dq = dq, .dk = found.select(0, 0), .dv = found.select(0, 1)};
        Saved here = saved;
        here.call = with_keys(own, keys);
        attention::add_attention_backward(dout, here, blocks, grads);
      }
      if (step > 0) others.exchange(step, std::move(found));
      keys.finish_hop(step);
    }
    hand_over_for_missing_hops(plan, group_.size());
    comm::hand_over();
    others.finish();
    return attention::finish_gradients(dq, home, dout, saved);
  }

 private:
  // The call of this rank's queries and the present keys, for this rank alone.
  static AttentionCall with_keys(AttentionCall call, const TravellingKeys& keys) {
    call.k = keys.k();
    call.v = keys.v();
    call.split = nullptr;
    return call;
  }

  // All layers of a window use one plan for a microbatch. Each of the two halves of a pair, which take turns,
  // keeps its own.
  std::shared_ptr<const RingPlan> plan_of(const AttentionCall& call) {
    if (planned_split_ != call.split || planned_starts_ != call.documents.host_starts) {
      plans_.clear();
      planned_split_ = call.split;
      planned_starts_ = call.documents.host_starts;
    }
    std::shared_ptr<const RingPlan>& plan = plans_[call.window];
    if (!plan) plan = std::make_shared<RingPlan>(plan_ring(*call.split, call.documents, call.window));
    return plan;
  }

  comm::Communicator& group_;
  bool deterministic_;
  std::shared_ptr<CoreAttention> local_;
  std::map<int64_t, std::shared_ptr<const RingPlan>> plans_;  // by window, of the tokens that came last
  std::shared_ptr<const tokens::ContextSplit> planned_split_;
  std::vector<int32_t> planned_starts_;
};

}  // namespace

std::shared_ptr<CoreAttention> make_ring_attention(comm::Communicator& group, bool deterministic) {
  // Keys go to the next rank; gradients may go to any.
  comm::connect_all(group, comm::Communicator::link_blocks);
  return std::make_shared<RingAttention>(group, deterministic);
}

}  // namespace pptrain::context
