#include "parallel/pipeline/executor.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/kernels/out_of_memory.h"
#include "parallel/comm/hand_over.h"
#include "parallel/comm/wait_timeout.h"

namespace pptrain::pipeline {

using schedule::Action;
using schedule::ActionKind;

namespace {

// "RECV_F stage 5 microbatch 7"
std::string describe(const Action& action) {
  if (action.kind == ActionKind::overlapped_pair) return schedule::to_string(action);
  std::string word = schedule::to_string(action);
  std::erase_if(word, [](char c) { return c >= '0' && c <= '9'; });
  return action.microbatch < 0
             ? fmt::format("{} stage {}", word, action.stage)
             : fmt::format("{} stage {} microbatch {}", word, action.stage, action.microbatch);
}

template <typename Map>
auto take(Map& map, const typename Map::key_type& key, const char* what) {
  auto node = map.extract(key);
  if (node.empty()) {
    throw Error(fmt::format("no {} for stage {} microbatch {}: the schedule's order is wrong", what,
                            key.first, key.second));
  }
  return std::move(node.mapped());
}

}  // namespace

Executor::Executor(std::vector<StageWithWeights> stages, comm::Communicator& pipeline,
                   const schedule::Schedule& schedule)
    : stages_(std::move(stages)), pipeline_(pipeline), schedule_(schedule.without_actions()) {
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
  if (schedule_.spread_head)
    head_ = std::make_unique<HeadExchange>(pipeline_, schedule_.rank_of(schedule_.stages() - 1));
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
  reset_marks();
  if (!pipeline_.holds_device()) expect_head(0);
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
  return peak_;
}

void Executor::run_range(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const Action& action = schedule_.actions[pipeline_.rank()][i];
    if (action.kind == ActionKind::overlapped_pair) {
      run_pair(action, passes_[i]);
    } else {
      execute(action, passes_[i][0]);
    }
    mark_on_device(action);
    pipeline_.progress();
    reap_sends(/*wait=*/false);
  }
}

// The halves take turns when their passes wait for exchanges, beginning with the forward. Bits are as if one
// ran after the other, because the halves share no sum: they are of different stages, each of which takes its
// microbatches in one order. The head's gradients and the loss come from forwards of the last stage, the
// embedding's gradient from backwards of the first, the loads of routers from backwards of each block.
void Executor::run_pair(const Action& pair, const Passes& passes) {
  const std::array<Action, 2> halves{schedule::forward_of(pair), schedule::backward_of(pair)};
  const size_t first = timed_;
  comm::in_turns([&] { execute(halves[0], passes[0]); }, [&] { execute(halves[1], passes[1]); },
                 [&](bool second) {
                   now_ = first + (second ? 1 : 0);
                   mark(goes_on_);
                   if (activity_ != nullptr)
                     activity_->set(comm::ActivityKind::work, describe(halves[second ? 1 : 0]));
                 });
}

// Runs the action, and names it in the errors that it throws.
void Executor::execute(const Action& action, const Pass& pass) {
  if (activity_ != nullptr) activity_->set(comm::ActivityKind::work, describe(action));
  if (logs(Subsystem::schedule, spdlog::level::trace))
    log_of(Subsystem::schedule).trace("{}", describe(action));
  try {
    dispatch(action, pass);
  } catch (const PeerFailure&) {
    throw;
  } catch (const comm::WaitTimeout& error) {
    throw comm::WaitTimeout(fmt::format("in {}: {}", describe(action), error.what()));
  } catch (const std::exception& error) {
    kernels::throw_from(fmt::format("in {}", describe(action)), error);
  }
}

// Marks the end of the action's work on the current stream. Receives and sends have streams of their own.
void Executor::mark_on_device(const Action& action) {
  if (activity_ == nullptr || device_.is_cpu() || !schedule::is_compute(action.kind)) return;
  const auto mark = std::make_shared<c10::Event>(device_.type());
  mark->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  activity_->enqueued(describe(action), [mark] { return mark->query(); });
}

// All ranks do so together. A message that only one side has begun is completed by the other, with values
// that are not read; after that the channels are as they were before the step.
void Executor::throw_away_prefix() {
  for (const auto& [source, due] : due_receives_) {
    if (!due.empty()) post_receives_up_to(Action(due.back()));
  }
  for (const Action& action : speculation_->drain[pipeline_.rank()]) {
    if (schedule::is_receive(action.kind)) {
      post_receive(action);
    } else {
      send(empty_boundary(action), action);
    }
  }
  for (auto* received : {&received_inputs_, &received_gradients_}) {
    for (auto& [key, receive] : *received) wait_for(receive);
    received->clear();
  }
  reap_sends(/*wait=*/true);
  for (auto* values : {&local_inputs_, &local_gradients_, &outputs_, &input_gradients_}) values->clear();
  for (const StageWithWeights& s : stages_) {
    s.stage.discard();
    s.weights.discard();
  }
  in_flight_ = 0;
  reset_marks();  // the step is timed as it is walked in the end
}

void Executor::reset_marks() {
  marks_.reset(timed_on_);
  marked_.clear();
  timed_ = 0;
}

// For the next action that is timed.
void Executor::begin_times() {
  now_ = timed_++;
  mark(waits_);
}

void Executor::mark(int moment) {
  if (!timed_on_) return;
  marks_.mark();
  marked_.emplace_back(now_, moment);
}

// An action takes the time from its start, and from each of its later turns, to the next mark.
std::vector<ActionTime> Executor::times() {
  const auto marks = marks_.times();
  std::vector<ActionTime> times(marks.empty() ? 0 : timed_);
  for (size_t i = 0; i < marks.size(); ++i) {
    const auto& [action, moment] = marked_[i];
    ActionTime& time = times[action];
    if (moment == waits_) time.wait = marks[i];
    if (moment == starts_) time.start = time.end = marks[i];
    if (moment == starts_ || moment == goes_on_) time.end += marks[i + 1] - marks[i];
  }
  for (size_t i = 1; i < times.size(); ++i) {  // the second half of a pair stands behind the first one
    const auto early = std::max(times[i - 1].end - times[i].start, TimeMarks::Clock::duration::zero());
    times[i].wait = std::max(times[i].wait, times[i - 1].end);
    times[i].start += early;
    times[i].end += early;
  }
  return times;
}

void Executor::dispatch(const Action& action, const Pass& pass) {
  switch (action.kind) {
    case ActionKind::recv_f:
    case ActionKind::recv_b:
      return receive(action);
    case ActionKind::send_f:
    case ActionKind::send_b:
      return post_send(action);
    case ActionKind::unshard:
    case ActionKind::reshard:
    case ActionKind::reduce_grad:
      return run_on_weights(action, pass);
    default:
      return compute(action, pass);
  }
}

void Executor::compute(const Action& action, const Pass& pass) {
  begin_times();
  find(action.stage).weights.begin_pass(pass);
  if (action.kind == ActionKind::forward) {
    run_forward(action);
  } else if (action.kind == ActionKind::head_forward) {
    run_head_forward(action);
  } else if (action.kind == ActionKind::head_backward) {
    run_head_backward(action);
  } else if (action.kind == ActionKind::backward_weight) {
    mark(starts_);
    stage(action.stage).backward_weight(action.microbatch);
    count_held(0, -1);
  } else {
    run_backward(action);
  }
  mark(ends_);
}

void Executor::run_on_weights(const Action& action, const Pass& pass) {
  begin_times();
  mark(starts_);
  WeightActions& weights = find(action.stage).weights;
  if (action.kind == ActionKind::unshard) {
    weights.unshard(pass.next);
  } else if (action.kind == ActionKind::reshard) {
    weights.reshard();
  } else {
    weights.reduce_grad();
  }
  mark(ends_);
}

void Executor::run_forward(const Action& action) {
  Stage& s = stage(action.stage);
  at::Tensor input = take_input(local_inputs_, ActionKind::recv_f, action, !s.is_first());
  mark(starts_);
  const data::Microbatch& data = microbatches_[action.microbatch];
  if (!schedule_.forward_only) count_held(1, 0);
  at::Tensor output = schedule_.forward_only ? s.forward_only(data, std::move(input))
                                             : s.forward(action.microbatch, data, std::move(input));
  if (s.is_last()) return;
  if (ends_in_head(s)) return head_->give_h(action.microbatch, std::move(output));
  auto& destination = is_local(action.stage + 1) ? local_inputs_[{action.stage + 1, action.microbatch}]
                                                 : outputs_[{action.stage, action.microbatch}];
  destination = std::move(output);
}

void Executor::run_backward(const Action& action) {
  Stage& s = stage(action.stage);
  at::Tensor dy = ends_in_head(s) ? head_->take_gradient(action.microbatch, waits(action))
                                  : take_input(local_gradients_, ActionKind::recv_b, action, !s.is_last());
  mark(starts_);
  at::Tensor dx = action.kind == ActionKind::backward ? s.backward(action.microbatch, std::move(dy))
                                                      : s.backward_input(action.microbatch, std::move(dy));
  count_held(-1, action.kind == ActionKind::backward_input ? 1 : 0);
  if (s.is_first()) return;
  auto& destination = is_local(action.stage - 1) ? local_gradients_[{action.stage - 1, action.microbatch}]
                                                 : input_gradients_[{action.stage, action.microbatch}];
  destination = std::move(dx);
}

void Executor::run_head_forward(const Action& action) {
  if (pipeline_.holds_device()) expect_head(action.microbatch);
  at::Tensor h = head_->take_h(action.microbatch, waits(action));
  mark(starts_);
  if (!pipeline_.holds_device()) expect_head(action.microbatch + 1);
  const data::Microbatch& data = microbatches_[action.microbatch];
  head_->give_statistics(action.microbatch,
                         stage(action.stage).head_forward(action.microbatch, data, std::move(h)));
}

void Executor::run_head_backward(const Action& action) {
  const at::Tensor statistics = head_->take_statistics(action.microbatch, waits(action));
  mark(starts_);
  const data::Microbatch& data = microbatches_[action.microbatch];
  const bool trains = !schedule_.forward_only;
  at::Tensor term = stage(action.stage).head_backward(action.microbatch, data, statistics, trains);
  if (trains) head_->give_term(action.microbatch, std::move(term));
}

// One input of the head ahead: its buffer is there before the last stage gives it.
void Executor::expect_head(int microbatch) {
  if (head_ == nullptr || microbatch >= schedule_.microbatches) return;
  head_->expect_h(microbatch, stages_.front().stage.empty_boundary(microbatches_[microbatch]));
}

HeadExchange::Wait Executor::waits(const Action& action) {
  return [this, action](comm::Work& work, const std::string& what) {
    const comm::ActivityScope waiting(activity_, comm::ActivityKind::wait,
                                      activity_ != nullptr ? what + " in " + describe(action) : "");
    work.wait([&] {
      return fmt::format("pipeline rank {} waits for {} in {}", pipeline_.rank(), what, describe(action));
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

at::Tensor Executor::take_input(std::map<Key, at::Tensor>& local, ActionKind receive, const Action& action,
                                bool expected) {
  if (!expected) return {};
  const Key key{action.stage, action.microbatch};
  if (auto node = local.extract(key)) return std::move(node.mapped());
  post_receives_up_to({receive, action.stage, action.microbatch});
  Message message = take(received(receive), key, "received tensor");
  wait_for(message);
  return std::move(message.tensor);
}

void Executor::wait_for(Message& receive) {
  const comm::ActivityScope waiting(activity_, comm::ActivityKind::wait,
                                    activity_ != nullptr ? describe(receive.action) : "");
  receive.work->wait([&] {
    return fmt::format("pipeline rank {} waits for {}", pipeline_.rank(), describe(receive.action));
  });
}

at::Tensor Executor::empty_boundary(const Action& action) {
  return stage(action.stage).empty_boundary(microbatches_[action.microbatch]);
}

// A receive that holds the device is posted only at its consumer. Posted earlier, its message may depend on
// what this rank runs in between. If that is a kernel's first run, which waits for the device, both wait for
// ever. At the consumer even receives that block in place cannot deadlock (schedule::add_communication).
void Executor::receive(const Action& action) {
  if (!pipeline_.holds_device()) return post_receive(action);
  due_receives_[source_of(action)].push_back(action);
}

// Also posts receives from the same rank that are due before it: messages come in the order in which they
// were sent.
void Executor::post_receives_up_to(const Action& last) {
  std::deque<Action>& due = due_receives_[source_of(last)];
  if (std::ranges::find(due, last) == due.end()) return;
  for (bool posted = false; !posted;) {
    const Action action = due.front();
    due.pop_front();
    post_receive(action);
    posted = action == last;
  }
}

void Executor::post_receive(const Action& action) {
  at::Tensor tensor = empty_boundary(action);
  auto work = pipeline_.irecv(tensor, source_of(action));
  received(action.kind)[{action.stage, action.microbatch}] = {std::move(tensor), std::move(work), action};
  const int posted = static_cast<int>(received_inputs_.size() + received_gradients_.size());
  peak_.receive_buffers = std::max(peak_.receive_buffers, posted);
}

void Executor::post_send(const Action& action) {
  const bool forward = action.kind == ActionKind::send_f;
  auto& values = forward ? outputs_ : input_gradients_;
  send(take(values, {action.stage, action.microbatch}, "computed tensor"), action);
}

void Executor::send(at::Tensor tensor, const Action& action) {
  auto work = pipeline_.isend(tensor, schedule_.rank_of(schedule::other_stage(action)));
  sends_.push_back({std::move(tensor), std::move(work), action});
}

void Executor::reap_sends(bool wait) {
  if (wait) {
    for (Message& send : sends_) {
      const comm::ActivityScope waiting(activity_, comm::ActivityKind::wait,
                                        activity_ != nullptr ? "the end of " + describe(send.action) : "");
      send.work->wait([&] {
        return fmt::format("pipeline rank {} waits to finish {}", pipeline_.rank(), describe(send.action));
      });
    }
    sends_.clear();
    return;
  }
  std::erase_if(sends_, [](Message& send) { return send.work->done(); });
}

void Executor::finish() {
  reap_sends(/*wait=*/true);
  if (head_)
    head_->finish([](comm::Work& work, const std::string& what) { work.wait([&] { return what; }); });
  for (const StageWithWeights& s : stages_) s.weights.finish();
  const bool all_posted =
      std::ranges::all_of(due_receives_, [](const auto& source) { return source.second.empty(); });
  const bool clean = all_posted && local_inputs_.empty() && local_gradients_.empty() &&
                     received_inputs_.empty() && received_gradients_.empty() && outputs_.empty() &&
                     input_gradients_.empty();
  if (!clean || in_flight_ != 0 || weight_operands_ != 0)
    throw Error("the schedule left values behind: it is not complete");
}

const StageWithWeights& Executor::find(int stage) const {
  for (const StageWithWeights& s : stages_) {
    if (s.stage.index() == stage) return s;
  }
  throw Error(fmt::format("stage {} is not on pipeline rank {}", stage, pipeline_.rank()));
}

bool Executor::is_local(int stage) const {
  return schedule_.rank_of(stage) == pipeline_.rank();
}

}  // namespace pptrain::pipeline
