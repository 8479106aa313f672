// Hooks before and after each use of a parameter group, in which sharding gathers weights and reduces
// gradients.
#pragma once

#include <cstddef>
#include <ranges>

namespace pptrain::nn {

// What a pass does with a group: F reads its weights; B reads them and takes its gradients; I reads them and
// takes the gradients of norms (is_taken_with_input); W takes the others, and reads adapters' weights alone.
enum class Use { forward, backward, backward_input, backward_weight };

constexpr bool reads_weights(Use use) {
  return use != Use::backward_weight;
}
constexpr bool takes_gradients(Use use) {
  return use != Use::forward;
}

// Groups are named by their index in the stage's ParameterStore. The hooks do nothing if all that a stage
// needs is always there.
class WeightAccess {
 public:
  virtual ~WeightAccess() = default;

  // Right before and right after a use. Within it the weights read are whole and the gradients taken have
  // memory. Uses of several groups may overlap. One B, or one I and one W, takes all that a microbatch adds
  // to a group's gradients; a head takes its part in F, and says B.
  virtual void acquire(std::size_t group, Use use) = 0;
  virtual void release(std::size_t group, Use use) = 0;
};

// Uses of groups that follow each other in the store; of no effect without an access.
class GroupUses {
 public:
  using Groups = std::ranges::iota_view<size_t, size_t>;

  explicit GroupUses(WeightAccess* access = nullptr) : access_(access) {}

  void acquire(const Groups& groups, Use use) const {
    if (access_ == nullptr) return;
    for (const size_t group : groups) access_->acquire(group, use);
  }
  void release(const Groups& groups, Use use) const {
    if (access_ == nullptr) return;
    for (const size_t group : groups | std::views::reverse) access_->release(group, use);
  }

  // Runs `body` while it may use the groups so.
  template <typename Body>
  void with(const Groups& groups, Use use, const Body& body) const {
    acquire(groups, use);
    body();
    release(groups, use);
  }

 private:
  WeightAccess* access_;
};

}  // namespace pptrain::nn
