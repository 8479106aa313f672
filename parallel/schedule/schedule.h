// A schedule as data: for each rank the list of what it does, and where each stage lives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/schedule/action.h"

namespace pptrain::schedule {

enum class Placement {
  loop,  // stage s on rank s mod p
  v,     // down the ranks and back up: p = 2, v = 2 is [0,3] [1,2]
};

std::string to_string(Placement placement);  // "loop", "v"

struct Schedule {
  std::string name;  // of the generator or the file; for messages alone
  int ranks = 1;
  int stages_per_rank = 1;
  int microbatches = 1;     // sequence slices count as microbatches
  int sequence_slices = 1;  // slices of a list, which follow each other: microbatches k j to k j + k - 1
  Placement placement = Placement::loop;
  bool forward_only = false;                 // F alone (S and T too): evaluation and inference
  bool spread_head = false;                  // every rank computes its part of the head: S and T
  bool blocking_sends = false;               // of the lists: they end even so (passes.h, match_messages)
  std::vector<std::vector<Action>> actions;  // [rank] in execution order; idle time is not listed

  int stages() const { return ranks * stages_per_rank; }
  int rank_of(int stage) const;
  std::vector<int> stages_of(int rank) const;                                             // ascending
  bool has_head(int rank) const { return spread_head || rank == rank_of(stages() - 1); }  // or a part of it
  // Does what stage s and stage s + 1 exchange go from one rank to another?
  bool crosses_ranks(int boundary) const { return rank_of(boundary) != rank_of(boundary + 1); }
  bool has(ActionKind kind) const;  // among the actions
  bool has_communication() const;   // any SEND or RECV between stages, not RECV_HEAD

  int lists() const { return microbatches / sequence_slices; }  // microbatches, not counting their slices
  int list_of(int microbatch) const { return microbatch / sequence_slices; }
  int in_whole_lists(int n) const { return n - n % sequence_slices; }  // of the first n microbatches

  // The microbatch whose B, I and W a stage takes as its n-th, from 0; and the n of a microbatch. Lists come
  // in order, and of a list the last slice first, since earlier keys get gradients from later queries.
  int nth_backward(int n) const { return n + sequence_slices - 1 - 2 * (n % sequence_slices); }
  // The microbatch whose backward passes come before those of this one; -1 for the first.
  int backward_before(int microbatch) const {
    const int n = nth_backward(microbatch);
    return n == 0 ? -1 : nth_backward(n - 1);
  }

  std::string microbatches_text() const;  // "8 microbatches", "2 microbatches in 4 slices each"
  std::string slices_text() const;        // ", each in 4 sequence slices", or ""

  // Places in a table over [stage x microbatch].
  size_t cells() const { return cell(stages(), 0); }
  size_t cell(int stage, int microbatch) const {
    return static_cast<size_t>(stage) * static_cast<size_t>(microbatches) + static_cast<size_t>(microbatch);
  }

  // The same name, sizes and placement, with an empty list for each rank.
  Schedule without_actions() const;
  Schedule of_whole_lists() const;  // the same, without slices
};

// Calls `visit` with every action of every list, with the halves of an overlapped pair one after the other.
template <typename Visit>
void for_each_part(const Schedule& schedule, const Visit& visit) {
  for (const auto& list : schedule.actions)
    for (const Action& action : list) for_each_part(action, visit);
}

// rank_of and crosses_ranks as tables, for what walks over all actions.
struct PlacementTable {
  explicit PlacementTable(const Schedule& schedule);

  std::vector<int> rank_of;      // [stage]
  std::vector<uint8_t> crosses;  // [boundary]: one fewer than stages
};

}  // namespace pptrain::schedule
