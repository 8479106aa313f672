// Hooks before and after each use of a parameter group, in which sharding gathers weights and reduces
// gradients.
#pragma once

#include <cstddef>

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

}  // namespace pptrain::nn
