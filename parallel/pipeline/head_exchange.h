// The exchange of pipeline ranks for a head that is sharded over them.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/communicator.h"

namespace pptrain::pipeline {

// The last stage's rank gives h to all. Each rank makes its statistics, which all get, then its term of h's
// gradient, which the last stage's rank sums. Microbatches ascend in every step of the way, but gradients are
// taken in any order. Only calls that take something wait. Communicators of its own keep its messages apart
// from the stages'.
class HeadExchange {
 public:
  // Collective over `pipeline`, which must outlive this. last: the rank with the last stage.
  HeadExchange(comm::Communicator& pipeline, int last);

  // Waits for an operation under way: the executor says what for.
  using Wait = std::function<void(comm::Work& work, const std::string& what)>;

  void expect_h(int microbatch, at::Tensor empty);  // on other ranks, one microbatch after the other
  void give_h(int microbatch, at::Tensor h);
  at::Tensor take_h(int microbatch, const Wait& wait);

  void give_statistics(int microbatch, const at::Tensor& own);   // [rows, n]
  at::Tensor take_statistics(int microbatch, const Wait& wait);  // [ranks, rows, n]

  void give_term(int microbatch, at::Tensor term);
  // In rank order: ((t0 + t1) + t2) + ... in the terms' own type, as sums of communicators are.
  at::Tensor take_gradient(int microbatch, const Wait& wait);

  bool is_last() const { return terms_->rank() == last_; }
  void finish(const Wait& wait);  // of the sends. Throws Error if something was not taken.

 private:
  using Message = std::pair<at::Tensor, std::unique_ptr<comm::Work>>;  // under way
  void send(at::Tensor tensor, int to);
  void receive_terms(int microbatch);

  std::unique_ptr<comm::Communicator> terms_;       // of h and of its gradient
  std::unique_ptr<comm::Communicator> statistics_;  // collectives
  int last_;
  std::map<int, at::Tensor> h_;                  // [microbatch] on the last stage's rank
  std::map<int, Message> arriving_h_;            // elsewhere
  std::map<int, Message> gathered_;              // statistics
  std::map<int, std::vector<Message>> term_of_;  // [microbatch][rank] on the last stage's rank
  std::deque<int> due_;                          // microbatches of which no other rank's term is expected yet
  std::deque<Message> sends_;
};

}  // namespace pptrain::pipeline
