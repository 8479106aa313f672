#include "parallel/pipeline/head_exchange.h"

#include <ATen/ops/stack.h>
#include <spdlog/fmt/fmt.h>

#include <vector>

#include "core/base/error.h"
#include "parallel/comm/links.h"

namespace pptrain::pipeline {

using schedule::ActionKind;

namespace {

constexpr ActionKind of_h = ActionKind::forward, of_statistics = ActionKind::head_forward,
                     of_term = ActionKind::head_backward;

template <typename Map>
typename Map::mapped_type extract(Map& map, const typename Map::key_type& key, const char* what) {
  auto node = map.extract(key);
  if (node.empty())
    throw Error(fmt::format("no {} of microbatch {}: the schedule's order is wrong", what, std::get<1>(key)));
  return std::move(node.mapped());
}

}  // namespace

HeadLinks::HeadLinks(comm::Communicator& pipeline, int last_rank)
    : last(last_rank), terms(pipeline.duplicate()), statistics(pipeline.duplicate()) {
  comm::connect_with_one(*terms, last);
  comm::connect_all(*statistics, 1);
}

template <typename Visit>
void HeadExchange::for_others(const Visit& visit) const {
  for (int rank = 0; rank < links_.terms->size(); ++rank)
    if (rank != links_.terms->rank()) visit(rank);
}

void HeadExchange::begin(std::span<const data::Microbatch> microbatches) {
  microbatches_ = microbatches;
  posted_.clear();
  if (ahead_) expect_h(0);
}

void HeadExchange::expect_h(int microbatch) {
  if (!is_last() && microbatch < std::ssize(microbatches_)) post_up_to(of_h, microbatch, links_.last);
}

void HeadExchange::receive(const schedule::Action& maker) {
  post_up_to(maker.kind, maker.microbatch, maker.kind == of_h ? links_.last : maker.stage);
}

void HeadExchange::post_up_to(ActionKind maker, int microbatch, int from) {
  const bool of_part = maker == of_statistics;
  for (int& next = posted_[{maker, from}]; next <= microbatch; ++next) {
    const data::Microbatch& data = microbatches_[next];
    at::Tensor empty = of_part ? own_stage_.empty_statistics(data) : own_stage_.empty_boundary(data);
    auto work = (of_part ? links_.statistics : links_.terms)->irecv(empty, from);
    arriving_[{maker, next, from}] = {std::move(empty), std::move(work)};
  }
}

void HeadExchange::send(comm::Communicator& ranks, at::Tensor tensor, int to) {
  std::erase_if(sends_, [](Message& message) { return message.second->done(); });
  auto work = ranks.isend(tensor, to);
  sends_.push_back({std::move(tensor), std::move(work)});
}

at::Tensor HeadExchange::take(ActionKind maker, int microbatch, int from, const Wait& wait,
                              const char* what) {
  const Key key{maker, microbatch, from};
  if (from == links_.terms->rank()) return extract(own_, key, what);
  post_up_to(maker, microbatch, from);
  Message message = extract(arriving_, key, what);
  wait(*message.second, what);
  return std::move(message.first);
}

void HeadExchange::give_h(int microbatch, at::Tensor h) {
  for_others([&](int rank) { send(*links_.terms, h, rank); });
  own_[{of_h, microbatch, links_.last}] = std::move(h);
}

at::Tensor HeadExchange::take_h(int microbatch, const Wait& wait) {
  at::Tensor h = take(of_h, microbatch, links_.last, wait, "the head's input");
  if (ahead_) expect_h(microbatch + 1);
  return h;
}

void HeadExchange::give_statistics(int microbatch, at::Tensor own) {
  for_others([&](int rank) {
    if (ahead_) post_up_to(of_statistics, microbatch, rank);
    send(*links_.statistics, own, rank);
  });
  own_[{of_statistics, microbatch, links_.terms->rank()}] = std::move(own);
}

at::Tensor HeadExchange::take_statistics(int microbatch, const Wait& wait) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < links_.terms->size(); ++rank)
    all.push_back(take(of_statistics, microbatch, rank, wait, "statistics of the head's other parts"));
  return at::stack(all);
}

void HeadExchange::give_term(int microbatch, at::Tensor term) {
  if (!is_last()) return send(*links_.terms, std::move(term), links_.last);
  own_[{of_term, microbatch, links_.last}] = std::move(term);
  if (!ahead_) return;
  for_others([&](int rank) { post_up_to(of_term, microbatch, rank); });
}

at::Tensor HeadExchange::take_gradient(int microbatch, const Wait& wait) {
  at::Tensor sum;
  for (int rank = 0; rank < links_.terms->size(); ++rank) {
    at::Tensor term = take(of_term, microbatch, rank, wait, "the gradient of the head's input");
    sum = rank == 0 ? std::move(term) : sum.add_(term);
  }
  return sum;
}

void HeadExchange::finish(const Wait& wait) {
  for (Message& message : sends_) wait(*message.second, "the end of the head's sends");
  sends_.clear();
  if (!own_.empty() || !arriving_.empty())
    throw Error("the schedule left values of the head behind: it is not complete");
}

}  // namespace pptrain::pipeline
