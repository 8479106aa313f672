#include "parallel/pipeline/executor.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/kernels/out_of_memory.h"
#include "core/kernels/profiler_range.h"
#include "parallel/comm/hand_over.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::pipeline {

using schedule::Action;
using schedule::ActionKind;

Executor::Executor(std::vector<StageWithWeights> stages, comm::Communicator& pipeline,
                   const schedule::Schedule& schedule, HeadLinks* head)
    : stages_(std::move(stages)),
      pipeline_(pipeline),
      schedule_(schedule.without_actions()),
      boundaries_(pipeline, schedule_, [this](const Action& message) {
        return stage(message.stage).empty_boundary(microbatches_[message.microbatch]);
      }) {
  if (schedule_.ranks != pipeline_.size()) {
    throw Error(fmt::format("the schedule is for {} pipeline ranks, the mesh has {}", schedule_.ranks,
                            pipeline_.size()));
  }
  const std::vector<int> expected = schedule_.stages_of(pipeline_.rank());
  const bool same =
      std::ranges::equal(stages_, expected, {}, [](const StageWithWeights& s) { return s.stage.index(); });
  if (!same)
    throw Error(fmt::format("pipeline rank {} holds other stages than its schedule says", pipeline_.rank()));
  // Keeps this rank's list alone: all lists on every rank would grow with the square of the ranks.
  schedule_.actions[pipeline_.rank()] = schedule.actions[pipeline_.rank()];
  passes_ = find_passes(schedule_.actions[pipeline_.rank()]);
  if (schedule_.spread_head) {
    if (head == nullptr) {
      own_links_ = std::make_unique<HeadLinks>(pipeline_, schedule_.rank_of(schedule_.stages() - 1));
      head = own_links_.get();
    }
    head_ = std::make_unique<HeadExchange>(*head, stages_.front().stage, /*ahead=*/!schedule.blocking_sends);
  }
  if (logs(Subsystem::schedule, spdlog::level::info)) log_list();
}

void Executor::log_list() const {
  const std::vector<Action>& list = schedule_.actions[pipeline_.rank()];
  log_of(Subsystem::schedule)
      .info("{}: pipeline rank {} of {}, stages {} of {}, {} microbatches, {} actions",
            schedule_.forward_only ? "evaluation" : "training", pipeline_.rank(), pipeline_.size(),
            fmt::join(schedule_.stages_of(pipeline_.rank()), ","), schedule_.stages(), schedule_.microbatches,
            list.size());
  std::vector<std::string> words;
  for (const Action& action : list) words.push_back(schedule::to_string(action));
  log_of(Subsystem::schedule).debug("the list: {}", fmt::join(words, " "));
}

void Executor::prepare_validation(const schedule::Schedule& schedule) {
  speculation_ = schedule::speculate(schedule);
}

// Walks from the end of the list to its beginning, and so knows what lies ahead of each action of a stage.
std::vector<Executor::Passes> Executor::find_passes(const std::vector<Action>& list) {
  std::map<int, Pass> ahead;  // [stage]
  const auto visit = [&](const Action& part) {
    Pass& stage = ahead[part.stage];
    stage.kind = part.kind;
    const Pass pass = stage;
    if (part.kind == ActionKind::reshard) stage.next.reset();
    if (part.kind == ActionKind::reduce_grad) stage.reduce_follows = true;
    if (!schedule::is_compute(part.kind)) return pass;
    if (schedule::needs_weights(part.kind)) stage.next = part.kind;
    stage.reduce_follows = false;
    return pass;
  };
  std::vector<Passes> passes(list.size());
  for (size_t i = list.size(); i-- > 0;) {
    if (list[i].kind == ActionKind::overlapped_pair) {
      passes[i][1] = visit(schedule::backward_of(list[i]));
      passes[i][0] = visit(schedule::forward_of(list[i]));
    } else {
      passes[i][0] = visit(list[i]);
    }
  }
  return passes;
}

schedule::InFlight Executor::run(std::span<const data::Microbatch> microbatches,
                                 const std::function<bool()>& validate) {
  if (static_cast<int>(microbatches.size()) != schedule_.microbatches) {
    throw Error(fmt::format("the schedule runs {} microbatches, {} were given", schedule_.microbatches,
                            microbatches.size()));
  }
  microbatches_ = microbatches;
  peak_ = {};
  in_flight_ = 0;
  weight_operands_ = 0;
  boundaries_.count_anew();
  times_.reset();
  if (head_) head_->begin(microbatches_);
  const comm::ActivityScope walking(activity_, comm::ActivityKind::work, "the schedule's list");
  size_t begin = 0;
  if (validate) {
    if (!speculation_) throw Error("validation of a step in the next one was not prepared");
    const size_t prefix = speculation_->prefix[pipeline_.rank()];
    run_range(0, prefix);
    for (const StageWithWeights& s : stages_) s.weights.settle();
    begin = prefix;
    if (!validate()) {
      throw_away_prefix();
      begin = 0;
    }
  }
  run_range(begin, schedule_.actions[pipeline_.rank()].size());
  finish();
  peak_.receive_buffers = boundaries_.most_posted();
  return peak_;
}

void Executor::run_range(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const Action& action = schedule_.actions[pipeline_.rank()][i];
    const kernels::ProfilerRange range(schedule::to_string(action));
    if (action.kind == ActionKind::overlapped_pair) {
      run_pair(action, passes_[i]);
    } else {
      execute(action, passes_[i][0]);
    }
    mark_on_device(action);
    pipeline_.progress();
    boundaries_.forget_sent();
  }
}

// The halves take turns when their passes wait for exchanges, beginning with the forward. Bits are as if one
// ran after the other, because the halves share no sum: they are of different stages, each of which takes its
// microbatches in one order. The head's gradients and the loss come from forwards of the last stage, the
// embedding's gradient from backwards of the first, the loads of routers from backwards of each block.
void Executor::run_pair(const Action& pair, const Passes& passes) {
  const std::array<Action, 2> halves{schedule::forward_of(pair), schedule::backward_of(pair)};
  const size_t first = times_.count();
  comm::in_turns([&] { execute(halves[0], passes[0]); }, [&] { execute(halves[1], passes[1]); },
                 [&](bool second) {
                   times_.goes_on(first + (second ? 1 : 0));
                   if (activity_ != nullptr)
                     activity_->set(comm::ActivityKind::work, in_words(halves[second ? 1 : 0]));
                 });
}

// Runs the action, and names it in the errors that it throws.
void Executor::execute(const Action& action, const Pass& pass) {
  if (activity_ != nullptr) activity_->set(comm::ActivityKind::work, in_words(action));
  if (logs(Subsystem::schedule, spdlog::level::trace))
    log_of(Subsystem::schedule).trace("{}", in_words(action));
  try {
    dispatch(action, pass);
  } catch (const PeerFailure&) {
    throw;
  } catch (const comm::WaitTimeout& error) {
    throw comm::WaitTimeout(fmt::format("in {}: {}", in_words(action), error.what()));
  } catch (const std::exception& error) {
    kernels::throw_from(fmt::format("in {}", in_words(action)), error);
  }
}

// Marks the end of the action's work on the current stream. Receives and sends have streams of their own.
void Executor::mark_on_device(const Action& action) {
  if (activity_ == nullptr || device_.is_cpu() || !schedule::is_compute(action.kind)) return;
  const auto mark = std::make_shared<c10::Event>(device_.type());
  mark->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  activity_->enqueued(in_words(action), [mark] { return mark->query(); });
}

// All ranks do so together. A message that only one side has begun is completed by the other, with values
// that are not read; after that the channels are as they were before the step.
void Executor::throw_away_prefix() {
  boundaries_.discard(speculation_->drain[pipeline_.rank()]);
  for (const StageWithWeights& s : stages_) {
    s.stage.discard();
    s.weights.discard();
  }
  in_flight_ = 0;
  times_.reset();  // the step is timed as it is walked in the end
}

void Executor::dispatch(const Action& action, const Pass& pass) {
  switch (action.kind) {
    case ActionKind::recv_f:
    case ActionKind::recv_b:
      return boundaries_.receive(action);
    case ActionKind::send_f:
    case ActionKind::send_b:
      return boundaries_.send(action);
    case ActionKind::recv_head:
      return head_->receive(schedule::maker_of(action));
    case ActionKind::unshard:
    case ActionKind::reshard:
    case ActionKind::reduce_grad:
      return run_on_weights(action, pass);
    default:
      return compute(action, pass);
  }
}

void Executor::compute(const Action& action, const Pass& pass) {
  times_.begin();
  find(action.stage).weights.begin_pass(pass);
  if (action.kind == ActionKind::forward) {
    run_forward(action);
  } else if (action.kind == ActionKind::head_forward) {
    run_head_forward(action);
  } else if (action.kind == ActionKind::head_backward) {
    run_head_backward(action);
  } else if (action.kind == ActionKind::backward_weight) {
    times_.starts();
    stage(action.stage).backward_weight(action.microbatch);
    count_held(0, -1);
  } else {
    run_backward(action);
  }
  times_.ends();
}

void Executor::run_on_weights(const Action& action, const Pass& pass) {
  times_.begin();
  times_.starts();
  WeightActions& weights = find(action.stage).weights;
  if (action.kind == ActionKind::unshard) {
    weights.unshard(pass.next);
  } else if (action.kind == ActionKind::reshard) {
    weights.reshard();
  } else {
    weights.reduce_grad();
  }
  times_.ends();
}

void Executor::run_forward(const Action& action) {
  Stage& s = stage(action.stage);
  at::Tensor input = s.is_first() ? at::Tensor() : boundaries_.take(action);
  times_.starts();
  const data::Microbatch& data = microbatches_[action.microbatch];
  if (!schedule_.forward_only) count_held(1, 0);
  at::Tensor output = schedule_.forward_only ? s.forward_only(data, std::move(input))
                                             : s.forward(action.microbatch, data, std::move(input));
  if (s.is_last()) return;
  if (ends_in_head(s)) return head_->give_h(action.microbatch, std::move(output));
  boundaries_.give(action, std::move(output));
}

void Executor::run_backward(const Action& action) {
  Stage& s = stage(action.stage);
  at::Tensor dy;
  if (ends_in_head(s)) {
    dy = head_->take_gradient(action.microbatch, waits(action));
  } else if (!s.is_last()) {
    dy = boundaries_.take(action);
  }
  times_.starts();
  at::Tensor dx = action.kind == ActionKind::backward ? s.backward(action.microbatch, std::move(dy))
                                                      : s.backward_input(action.microbatch, std::move(dy));
  count_held(-1, action.kind == ActionKind::backward_input ? 1 : 0);
  if (!s.is_first()) boundaries_.give(action, std::move(dx));
}

void Executor::run_head_forward(const Action& action) {
  at::Tensor h = head_->take_h(action.microbatch, waits(action));
  times_.starts();
  const data::Microbatch& data = microbatches_[action.microbatch];
  head_->give_statistics(action.microbatch,
                         stage(action.stage).head_forward(action.microbatch, data, std::move(h)));
}

void Executor::run_head_backward(const Action& action) {
  const at::Tensor statistics = head_->take_statistics(action.microbatch, waits(action));
  times_.starts();
  const data::Microbatch& data = microbatches_[action.microbatch];
  const bool trains = !schedule_.forward_only;
  at::Tensor term = stage(action.stage).head_backward(action.microbatch, data, statistics, trains);
  if (trains) head_->give_term(action.microbatch, std::move(term));
}

HeadExchange::Wait Executor::waits(const Action& action) {
  return [this, action](comm::Work& work, const std::string& what) {
    const comm::ActivityScope waiting(activity_, comm::ActivityKind::wait,
                                      activity_ != nullptr ? what + " in " + in_words(action) : "");
    work.wait([&] {
      return fmt::format("pipeline rank {} waits for {} in {}", pipeline_.rank(), what, in_words(action));
    });
  };
}

void Executor::count_held(int activations, int weight_operands) {
  in_flight_ += activations;
  weight_operands_ += weight_operands;
  peak_.activations = std::max(peak_.activations, in_flight_);
  peak_.weight_operands = std::max(peak_.weight_operands, weight_operands_);
  peak_.held = std::max(peak_.held, in_flight_ + weight_operands_);
}

void Executor::finish() {
  boundaries_.finish();
  if (head_)
    head_->finish([](comm::Work& work, const std::string& what) { work.wait([&] { return what; }); });
  for (const StageWithWeights& s : stages_) s.weights.finish();
  if (in_flight_ != 0 || weight_operands_ != 0)
    throw Error("the schedule left values behind: it is not complete");
}

const StageWithWeights& Executor::find(int stage) const {
  for (const StageWithWeights& s : stages_) {
    if (s.stage.index() == stage) return s;
  }
  throw Error(fmt::format("stage {} is not on pipeline rank {}", stage, pipeline_.rank()));
}

}  // namespace pptrain::pipeline
