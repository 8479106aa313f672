#include "parallel/shard/gradient_sums.h"

#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <chrono>
#include <tuple>
#include <utility>

namespace pptrain::shard {
namespace {

// Whether a wait for it would not block the host.
bool is_free(comm::Work& work) {
  return work.wait_for(std::chrono::milliseconds(0));
}

}  // namespace

struct GradientSums::Sum {
  const GroupExchange* exchange;
  size_t buffer;
  GroupExchange::SumSteps steps;
  std::function<void()> finished;
  size_t begun = 0;                  // steps
  std::unique_ptr<comm::Work> work;  // of the last that was not empty
};

GradientSums::GradientSums() = default;
GradientSums::~GradientSums() = default;

bool GradientSums::empty() const {
  return sums_.empty();
}

void GradientSums::begin(GroupExchange& exchange, size_t buffer, std::function<void()> finished) {
  sums_.push_back({.exchange = &exchange,
                   .buffer = buffer,
                   .steps = exchange.sum_steps(buffer),
                   .finished = std::move(finished),
                   .begun = 0,
                   .work = nullptr});
  advance();
}

// A sum never begins more steps than the one before it has.
void GradientSums::begin_steps() {
  size_t before = std::tuple_size_v<GroupExchange::SumSteps>;
  for (Sum& sum : sums_) {
    while (sum.begun < before && (!sum.work || is_free(*sum.work))) begin_step(sum);
    before = sum.begun;
  }
}

void GradientSums::begin_step(Sum& sum) {
  const GroupExchange::Step& step = sum.steps[sum.begun++];
  if (!step) return;
  if (!sum.work) {
    sum.work = step();
    return;
  }
  // On which the step waits for the one before it.
  const c10::OptionalStreamGuard behind(
      wait_stream_.get(sum.exchange->group().buffers().at(sum.buffer)->whole_grad.device()));
  sum.work->wait({});
  sum.work = step();
}

bool GradientSums::front_is_done() const {
  const Sum& front = sums_.front();
  return front.begun == front.steps.size() && (!front.work || front.work->done());
}

void GradientSums::finish_front() {
  const std::function<void()> finished = std::move(sums_.front().finished);
  sums_.pop_front();
  finished();
}

void GradientSums::advance() {
  begin_steps();
  while (!sums_.empty() && front_is_done()) {
    if (sums_.front().work) sums_.front().work->wait({});
    finish_front();
    begin_steps();
  }
}

// What the front waits for is begun at once: it has nothing before it.
void GradientSums::wait_for_front(const std::function<std::string()>& what) {
  Sum& front = sums_.front();
  while (true) {
    begin_steps();
    if (front.work) front.work->wait(what);
    if (front.begun == front.steps.size()) break;
    begin_step(front);
  }
  finish_front();
}

void GradientSums::finish(const std::function<std::string()>& what) {
  while (!sums_.empty()) wait_for_front(what);
}

void GradientSums::wait_for(const GroupExchange& exchange, size_t buffer,
                            const std::function<std::string()>& what) {
  while (under_way(exchange, buffer)) wait_for_front(what);
}

bool GradientSums::under_way(const GroupExchange& exchange, size_t buffer) const {
  return std::ranges::any_of(
      sums_, [&](const Sum& sum) { return sum.exchange == &exchange && sum.buffer == buffer; });
}

}  // namespace pptrain::shard
