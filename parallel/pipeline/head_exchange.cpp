#include "parallel/pipeline/head_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <spdlog/fmt/fmt.h>

#include <utility>

#include "core/base/error.h"
#include "parallel/comm/links.h"

namespace pptrain::pipeline {
namespace {

template <typename Map>
auto take(Map& map, int microbatch, const char* what) {
  auto node = map.extract(microbatch);
  if (node.empty())
    throw Error(fmt::format("no {} of microbatch {}: the schedule's order is wrong", what, microbatch));
  return std::move(node.mapped());
}

}  // namespace

HeadExchange::HeadExchange(comm::Communicator& pipeline, int last)
    : terms_(pipeline.duplicate()), statistics_(pipeline.duplicate()), last_(last) {
  comm::connect_with_one(*terms_, last);
}

void HeadExchange::send(at::Tensor tensor, int to) {
  std::erase_if(sends_, [](Message& message) { return message.second->done(); });
  auto work = terms_->isend(tensor, to);
  sends_.push_back({std::move(tensor), std::move(work)});
}

void HeadExchange::expect_h(int microbatch, at::Tensor empty) {
  if (is_last()) return;
  auto work = terms_->irecv(empty, last_);
  arriving_h_[microbatch] = {std::move(empty), std::move(work)};
}

void HeadExchange::give_h(int microbatch, at::Tensor h) {
  for (int rank = 0; rank < terms_->size(); ++rank) {
    if (rank != last_) send(h, rank);
  }
  h_[microbatch] = std::move(h);
}

at::Tensor HeadExchange::take_h(int microbatch, const Wait& wait) {
  if (is_last()) return take(h_, microbatch, "input of the head");
  Message message = take(arriving_h_, microbatch, "input of the head");
  wait(*message.second, "the head's input");
  return std::move(message.first);
}

void HeadExchange::give_statistics(int microbatch, const at::Tensor& own) {
  at::Tensor all = at::empty({statistics_->size(), own.size(0), own.size(1)}, own.options());
  auto work = statistics_->iall_gather(all, own);
  gathered_[microbatch] = {std::move(all), std::move(work)};
}

at::Tensor HeadExchange::take_statistics(int microbatch, const Wait& wait) {
  Message message = take(gathered_, microbatch, "statistics of the head");
  wait(*message.second, "statistics of the head's other parts");
  return std::move(message.first);
}

void HeadExchange::give_term(int microbatch, at::Tensor term) {
  if (!is_last()) return send(std::move(term), last_);
  std::vector<Message>& terms = term_of_[microbatch];
  terms.resize(static_cast<size_t>(terms_->size()));
  terms[static_cast<size_t>(last_)].first = std::move(term);
  due_.push_back(microbatch);
  if (!terms_->holds_device()) receive_terms(microbatch);
}

// Receives the terms of this and of earlier microbatches: terms come in the order in which they were sent.
void HeadExchange::receive_terms(int microbatch) {
  while (!due_.empty() && due_.front() <= microbatch) {
    std::vector<Message>& terms = term_of_.at(due_.front());
    due_.pop_front();
    for (int rank = 0; rank < terms_->size(); ++rank) {
      if (rank == last_) continue;
      Message& message = terms[static_cast<size_t>(rank)];
      message.first = at::empty_like(terms[static_cast<size_t>(last_)].first);
      message.second = terms_->irecv(message.first, rank);
    }
  }
}

at::Tensor HeadExchange::take_gradient(int microbatch, const Wait& wait) {
  receive_terms(microbatch);
  std::vector<Message> terms = take(term_of_, microbatch, "gradient of the head's input");
  for (Message& message : terms) {
    if (message.second) wait(*message.second, "the gradient of the head's input");
  }
  for (size_t rank = 1; rank < terms.size(); ++rank) terms[0].first.add_(terms[rank].first);
  return std::move(terms[0].first);
}

void HeadExchange::finish(const Wait& wait) {
  for (Message& message : sends_) wait(*message.second, "the end of the head's sends");
  sends_.clear();
  if (!h_.empty() || !arriving_h_.empty() || !gathered_.empty() || !term_of_.empty())
    throw Error("the schedule left values of the head behind: it is not complete");
}

}  // namespace pptrain::pipeline
