#include "parallel/schedule/proof/validate.h"

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/error.h"
#include "parallel/schedule/proof/grid.h"

namespace pptrain::schedule {
namespace {

constexpr int32_t absent = -1;

class Validator {
 public:
  explicit Validator(const Schedule& schedule) : s_(schedule) {}

  void run(ReceiveModel model) {
    check_sizes();
    index_actions();
    check_complete();
    check_order();
    if (s_.has_communication()) {
      check_messages();
      check_channels();
    }
    check_whole_stage_actions();
    check_progress(model);
  }

 private:
  // The lists are indexed by what was done: B counts as gradient and as weight.
  enum Slot {
    slot_forward,
    slot_gradient,
    slot_weight,
    slot_send_f,
    slot_recv_f,
    slot_send_b,
    slot_recv_b,
    slots
  };

  size_t at(int stage, int mb) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(s_.microbatches) + static_cast<size_t>(mb);
  }
  int32_t& where(Slot slot, int stage, int mb) { return where_[slot][at(stage, mb)]; }

  [[noreturn]] void fail(int rank, size_t index, const std::string& why) const {
    const auto& list = s_.actions[rank];
    const std::string cell = index < list.size() ? " (" + to_string(list[index]) + ")" : " (end of its list)";
    throw Error("schedule" + (s_.name.empty() ? "" : " " + s_.name) + " is unsound: rank " +
                std::to_string(rank) + ", step " + std::to_string(index) + cell + ": " + why + "\n" +
                format_grid(s_, rank, index));
  }

  void check_sizes() const {
    if (s_.ranks < 1 || s_.stages_per_rank < 1 || s_.microbatches < 1) {
      throw Error("a schedule needs at least 1 rank, 1 stage per rank and 1 microbatch");
    }
    if (s_.actions.size() != static_cast<size_t>(s_.ranks)) {
      throw Error("a schedule for " + std::to_string(s_.ranks) + " ranks has " +
                  std::to_string(s_.actions.size()) + " lists of actions");
    }
  }

  void index_actions() {
    const size_t cells = static_cast<size_t>(s_.stages()) * static_cast<size_t>(s_.microbatches);
    for (auto& positions : where_) positions.assign(cells, absent);
    for (int stage = 0; stage < s_.stages(); ++stage) rank_of_.push_back(s_.rank_of(stage));
    for (int rank = 0; rank < s_.ranks; ++rank) {
      const auto& list = s_.actions[rank];
      for (size_t i = 0; i < list.size(); ++i) {
        if (list[i].kind == ActionKind::overlapped_pair) check_pair(rank, i);
        for_each_part(list[i], [&](const Action& action) { index_action(rank, i, action); });
      }
    }
  }

  void check_pair(int rank, size_t i) const {
    const auto& pair = s_.actions[rank][i].pair;
    if (pair.size() != 2 || pair[0].kind != ActionKind::forward || !is_gradient(pair[1].kind)) {
      fail(rank, i, "an overlapped pair is an F, then a B or I");
    }
  }

  void index_action(int rank, size_t i, const Action& action) {
    if (action.stage < 0 || action.stage >= s_.stages()) {
      fail(rank, i,
           "there is no stage " + std::to_string(action.stage) + ": the stages are 0 to " +
               std::to_string(s_.stages() - 1));
    }
    if (rank_of_[action.stage] != rank) {
      fail(rank, i,
           "stage " + std::to_string(action.stage) + " is on rank " + std::to_string(rank_of_[action.stage]));
    }
    if (!is_compute(action.kind) && !is_communication(action.kind)) return;
    if (action.microbatch < 0 || action.microbatch >= s_.microbatches) {
      fail(rank, i,
           "there is no microbatch " + std::to_string(action.microbatch) + ": they are 0 to " +
               std::to_string(s_.microbatches - 1));
    }
    switch (action.kind) {
      case ActionKind::forward:
        return put(slot_forward, rank, i, action);
      case ActionKind::send_f:
        return put(slot_send_f, rank, i, action);
      case ActionKind::recv_f:
        return put(slot_recv_f, rank, i, action);
      case ActionKind::send_b:
        return put(slot_send_b, rank, i, action);
      case ActionKind::recv_b:
        return put(slot_recv_b, rank, i, action);
      default:
        break;
    }
    if (s_.forward_only) fail(rank, i, "a forward-only schedule has no backward");
    if (action.kind != ActionKind::backward_weight) put(slot_gradient, rank, i, action);
    if (action.kind != ActionKind::backward_input) put(slot_weight, rank, i, action);
  }

  void put(Slot slot, int rank, size_t i, const Action& action) {
    int32_t& position = where(slot, action.stage, action.microbatch);
    if (position != absent) {
      fail(rank, i,
           to_string(action) + " does what step " + std::to_string(position) + " (" +
               to_string(s_.actions[rank][position]) + ") has done already");
    }
    position = static_cast<int32_t>(i);
  }

  void check_complete() {
    for (int stage = 0; stage < s_.stages(); ++stage) {
      const int rank = rank_of_[stage];
      const auto missing = [&](const Action& action, const char* instead) {
        fail(rank, s_.actions[rank].size(), to_string(action) + instead + " is missing");
      };
      for (int mb = 0; mb < s_.microbatches; ++mb) {
        if (where(slot_forward, stage, mb) == absent) missing(forward(stage, mb), "");
        if (s_.forward_only) continue;
        if (where(slot_gradient, stage, mb) == absent) missing(backward(stage, mb), " (or I)");
        if (where(slot_weight, stage, mb) == absent) missing(backward_weight(stage, mb), "");
      }
    }
  }

  void check_order() {
    for (int stage = 0; stage < s_.stages(); ++stage) {
      const int rank = rank_of_[stage];
      for (int mb = 0; mb < s_.microbatches; ++mb) {
        check_ascending(slot_forward, stage, mb, "forward");
        if (s_.forward_only) continue;
        check_ascending(slot_gradient, stage, mb, "backward");
        check_ascending(slot_weight, stage, mb, "weight gradient");
        const int32_t gradient = where(slot_gradient, stage, mb);
        const int32_t weight = where(slot_weight, stage, mb);
        if (gradient <= where(slot_forward, stage, mb)) {
          fail(rank, gradient,
               "the backward comes before " + to_string(forward(stage, mb)) + ", whose gradient it is");
        }
        if (weight < gradient) {
          fail(rank, weight,
               "the weight gradient comes before " + to_string(backward_input(stage, mb)) +
                   ", which leaves its operands");
        }
      }
    }
  }

  void check_ascending(Slot slot, int stage, int mb, const char* what) {
    if (mb == 0 || where(slot, stage, mb) > where(slot, stage, mb - 1)) return;
    fail(rank_of_[stage], where(slot, stage, mb),
         std::string("the ") + what + " of microbatch " + std::to_string(mb) + " of stage " +
             std::to_string(stage) + " comes before that of microbatch " + std::to_string(mb - 1) +
             "; a stage takes its microbatches in ascending order");
  }

  void check_messages() {
    for (int boundary = 0; boundary + 1 < s_.stages(); ++boundary) {
      const bool crosses = s_.crosses_ranks(boundary);
      for (int mb = 0; mb < s_.microbatches; ++mb) {
        check_message(boundary, boundary + 1, mb, slot_send_f, slot_recv_f, slot_forward, crosses);
        check_message(boundary + 1, boundary, mb, slot_send_b, slot_recv_b, slot_gradient,
                      crosses && !s_.forward_only);
      }
    }
    check_no_message_beyond_the_ends();
  }

  // What stage `from` sends stage `to`: both use slot `compute`, the sender before, the receiver after.
  void check_message(int from, int to, int mb, Slot send, Slot receive, Slot compute, bool needed) {
    const auto check_there = [&](Slot slot, ActionKind kind, int stage) {
      const int rank = rank_of_[stage];
      const int32_t position = where(slot, stage, mb);
      if (needed && position == absent) {
        fail(rank, s_.actions[rank].size(), to_string(Action{kind, stage, mb, {}}) + " is missing");
      }
      if (!needed && position != absent) {
        if (rank_of_[from] != rank_of_[to])
          fail(rank, position, "a forward-only schedule sends no gradients");
        fail(rank, position,
             "stages " + std::to_string(from) + " and " + std::to_string(to) +
                 " are on the same rank and need no message");
      }
    };
    const bool is_f = send == slot_send_f;
    check_there(send, is_f ? ActionKind::send_f : ActionKind::send_b, from);
    check_there(receive, is_f ? ActionKind::recv_f : ActionKind::recv_b, to);
    if (!needed) return;
    if (where(send, from, mb) < where(compute, from, mb)) {
      fail(rank_of_[from], where(send, from, mb),
           "it sends what is computed only at step " + std::to_string(where(compute, from, mb)));
    }
    if (where(receive, to, mb) > where(compute, to, mb)) {
      fail(rank_of_[to], where(receive, to, mb),
           "it receives what step " + std::to_string(where(compute, to, mb)) + " has needed already");
    }
  }

  void check_no_message_beyond_the_ends() {
    const auto check_none = [&](Slot slot, int stage, const char* why) {
      for (int mb = 0; mb < s_.microbatches; ++mb) {
        const int32_t position = where(slot, stage, mb);
        if (position != absent) fail(rank_of_[stage], position, why);
      }
    };
    check_none(slot_recv_f, 0, "the first stage has no stage before it to receive from");
    check_none(slot_send_b, 0, "the first stage has no stage before it to send to");
    check_none(slot_send_f, s_.stages() - 1, "the last stage has no stage after it to send to");
    check_none(slot_recv_b, s_.stages() - 1, "the last stage has no stage after it to receive from");
  }

  // Numbers the messages of each channel in the order of the sends, then checks that the receives count up.
  void check_channels() {
    std::unordered_map<int64_t, int32_t> sent;
    std::unordered_map<int64_t, int32_t> received;
    std::vector<int32_t> number_f(where_[slot_forward].size());
    std::vector<int32_t> number_b(where_[slot_forward].size());
    const auto channel = [&](int from, int to) {
      return static_cast<int64_t>(rank_of_[from]) * s_.ranks + rank_of_[to];
    };
    for (const auto& list : s_.actions) {
      for (const Action& a : list) {
        if (a.kind == ActionKind::send_f)
          number_f[at(a.stage, a.microbatch)] = sent[channel(a.stage, a.stage + 1)]++;
        if (a.kind == ActionKind::send_b)
          number_b[at(a.stage, a.microbatch)] = sent[channel(a.stage, a.stage - 1)]++;
      }
    }
    for (int rank = 0; rank < s_.ranks; ++rank) {
      const auto& list = s_.actions[rank];
      for (size_t i = 0; i < list.size(); ++i) {
        const Action& a = list[i];
        if (!is_receive(a.kind)) continue;
        const bool is_f = a.kind == ActionKind::recv_f;
        const int from = is_f ? a.stage - 1 : a.stage + 1;
        const int32_t expected = received[channel(from, a.stage)]++;
        const int32_t number = (is_f ? number_f : number_b)[at(from, a.microbatch)];
        if (number != expected) {
          fail(rank, i,
               "it is receive number " + std::to_string(expected) + " on the channel from rank " +
                   std::to_string(rank_of_[from]) + ", but its send is number " + std::to_string(number) +
                   " there; receives must come in the order of the sends");
        }
      }
    }
  }

  // UNSHARD, RESHARD and REDUCE_GRAD. A stage that is never unsharded is taken to be whole all the time.
  void check_whole_stage_actions() const {
    for (int rank = 0; rank < s_.ranks; ++rank) {
      std::unordered_map<int, bool> unsharded;
      std::unordered_map<int, int> weight_gradients;
      std::unordered_map<int, bool> reduced;
      const auto& list = s_.actions[rank];
      bool any_reduce = false;
      for (const Action& action : list) {
        if (action.kind == ActionKind::unshard) unsharded[action.stage] = false;
        any_reduce |= action.kind == ActionKind::reduce_grad;
      }
      for (size_t i = 0; i < list.size(); ++i) {
        const Action& action = list[i];
        if (action.kind == ActionKind::unshard || action.kind == ActionKind::reshard) {
          const bool is_unshard = action.kind == ActionKind::unshard;
          const auto state = unsharded.find(action.stage);
          if (state == unsharded.end() || state->second == is_unshard) {
            fail(rank, i, is_unshard ? "the stage is unsharded already" : "the stage is not unsharded");
          }
          state->second = is_unshard;
        } else if (action.kind == ActionKind::reduce_grad) {
          if (weight_gradients[action.stage] != s_.microbatches) {
            fail(rank, i,
                 "only " + std::to_string(weight_gradients[action.stage]) + " of " +
                     std::to_string(s_.microbatches) + " weight gradients of the stage are there");
          }
          if (reduced[action.stage]) fail(rank, i, "the gradients of the stage are reduced already");
          reduced[action.stage] = true;
        } else if (is_compute(action.kind)) {
          for_each_part(action, [&](const Action& part) {
            const auto state = unsharded.find(part.stage);
            if (state != unsharded.end() && !state->second) fail(rank, i, "the stage is not unsharded");
            if (part.kind == ActionKind::backward || part.kind == ActionKind::backward_weight) {
              ++weight_gradients[part.stage];
            }
          });
        }
      }
      if (!any_reduce) continue;
      for (const int stage : s_.stages_of(rank)) {
        if (!reduced[stage]) fail(rank, list.size(), std::to_string(stage) + "REDUCE_GRAD is missing");
      }
    }
  }

  void check_progress(ReceiveModel model) const {
    Replay replay(s_, model);
    if (replay.run([](int, size_t, const Action&) {})) return;
    const auto& positions = replay.positions();
    std::string waiting;
    int first = -1;
    int listed = 0;
    for (int rank = 0; rank < s_.ranks; ++rank) {
      const auto& list = s_.actions[rank];
      if (positions[rank] >= list.size()) continue;
      if (first < 0) first = rank;
      if (++listed > 16) continue;
      waiting += "\n  rank " + std::to_string(rank) + " waits in step " + std::to_string(positions[rank]) +
                 " (" + to_string(list[positions[rank]]) + ")" + waits_for(list[positions[rank]]);
    }
    if (listed > 16) waiting += "\n  and " + std::to_string(listed - 16) + " more ranks";
    fail(first, positions[first], "deadlock, no rank can go on:" + waiting);
  }

  std::string waits_for(const Action& action) const {
    std::string text;
    for_each_part(action, [&](const Action& part) {
      const int stage = part.stage;
      int source = -1;
      if ((part.kind == ActionKind::forward || part.kind == ActionKind::recv_f) && stage > 0)
        source = stage - 1;
      if ((is_gradient(part.kind) || part.kind == ActionKind::recv_b) && stage + 1 < s_.stages())
        source = stage + 1;
      if (source < 0) return;
      text += (text.empty() ? " for " : " and ") +
              std::string(source < stage ? "the forward" : "the backward") + " of microbatch " +
              std::to_string(part.microbatch) + " by stage " + std::to_string(source) + " on rank " +
              std::to_string(rank_of_[source]);
    });
    return text;
  }

  const Schedule& s_;
  std::vector<int> rank_of_;
  std::array<std::vector<int32_t>, slots>
      where_;  // [slot][stage x microbatch] place in the list of the stage's rank
};

}  // namespace

void validate(const Schedule& schedule, ReceiveModel model) {
  Validator(schedule).run(model);
}

}  // namespace pptrain::schedule
