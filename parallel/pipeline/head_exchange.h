// The exchange of pipeline ranks for a head that is sharded over them.
#pragma once

#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "core/data/microbatch.h"
#include "parallel/comm/communicator.h"
#include "parallel/pipeline/stage.h"
#include "parallel/schedule/action.h"

namespace pptrain::pipeline {

// The communicators of a spread head, which keep its messages apart from the stages'. Executors that run one
// after the other share them.
struct HeadLinks {
  // Collective over `pipeline`, which must outlive this. last: the rank with the last stage.
  HeadLinks(comm::Communicator& pipeline, int last);

  int last;
  std::unique_ptr<comm::Communicator> terms;       // of h and of its gradient
  std::unique_ptr<comm::Communicator> statistics;  // of all with all
};

// The last stage's rank gives h to all. Each rank makes its statistics, which all get, then its term of h's
// gradient, which the last stage's rank sums. Microbatches ascend in every step of the way, but gradients are
// taken in any order. Only calls that take something wait.
class HeadExchange {
 public:
  // own: a stage of this rank, for the shapes of messages. ahead: receives are posted when the rank may
  // expect them, so that their memory is there early; otherwise by RECV_HEAD, or by the call that takes the
  // message. Both references must outlive this.
  HeadExchange(HeadLinks& links, const Stage& own, bool ahead)
      : links_(links), own_stage_(own), ahead_(ahead) {}

  // Waits for an operation under way: the executor says what for.
  using Wait = std::function<void(comm::Work& work, const std::string& what)>;

  void begin(std::span<const data::Microbatch> microbatches);  // of a run
  // RECV_HEAD of what this action of another rank makes.
  void receive(const schedule::Action& maker);

  void give_h(int microbatch, at::Tensor h);
  at::Tensor take_h(int microbatch, const Wait& wait);

  void give_statistics(int microbatch, at::Tensor own);          // [rows, n]
  at::Tensor take_statistics(int microbatch, const Wait& wait);  // [ranks, rows, n]

  void give_term(int microbatch, at::Tensor term);
  // In rank order: ((t0 + t1) + t2) + ... in the terms' own type.
  at::Tensor take_gradient(int microbatch, const Wait& wait);

  void finish(const Wait& wait);  // of the sends. Throws Error if something was not taken.

 private:
  using Message = std::pair<at::Tensor, std::unique_ptr<comm::Work>>;  // under way
  using Key = std::tuple<schedule::ActionKind, int, int>;              // that makes it, microbatch, rank
  bool is_last() const { return links_.terms->rank() == links_.last; }
  void send(comm::Communicator& ranks, at::Tensor tensor, int to);
  // Messages of one kind from a rank arrive by ascending microbatch: posts the receives up to this one.
  void post_up_to(schedule::ActionKind maker, int microbatch, int from);
  void expect_h(int microbatch);
  at::Tensor take(schedule::ActionKind maker, int microbatch, int from, const Wait& wait, const char* what);
  template <typename Visit>
  void for_others(const Visit& visit) const;

  HeadLinks& links_;
  const Stage& own_stage_;
  bool ahead_;
  std::span<const data::Microbatch> microbatches_;
  std::map<Key, at::Tensor> own_;  // what this rank has made and takes itself
  std::map<Key, Message> arriving_;
  std::map<std::pair<schedule::ActionKind, int>, int> posted_;  // [kind, rank] receives of the run so far
  std::deque<Message> sends_;
};

}  // namespace pptrain::pipeline
