// Which action uses a message: what the passes that place receives look up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace pptrain::schedule {

class Consumers {
 public:
  explicit Consumers(const Schedule& schedule);

  // The F, or the B or I, that uses what the receive brings: its number among the compute actions of its
  // rank.
  uint32_t of(const Action& receive) const {
    const auto& numbers = receive.kind == ActionKind::recv_f ? forward_ : gradient_;
    return numbers[s_.cell(receive.stage, receive.microbatch)];
  }

 private:
  const Schedule& s_;
  std::vector<uint32_t> forward_;  // [stage x microbatch]
  std::vector<uint32_t> gradient_;
};

}  // namespace pptrain::schedule
