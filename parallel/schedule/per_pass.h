// A value for each kind of pass: its time, its memory, what a dry run of it finds.
#pragma once

#include <array>
#include <cstddef>

#include "core/base/error.h"
#include "parallel/schedule/action.h"

namespace pptrain::schedule {

// In the order of ActionKind. A new kind of pass is a member here, and every cost and footprint has it.
template <typename T>
struct PerPass {
  T forward{};
  T backward{};  // B at once
  T backward_input{};
  T backward_weight{};
  T head_forward{};
  T head_backward{};

  static constexpr int kinds = 6;

  // That of F, B, I, W, S or T. Throws Error for an action that is no pass.
  const T& of(ActionKind pass) const { return this->*member(pass); }
  T& of(ActionKind pass) { return this->*member(pass); }

  // With value(pass) for every pass.
  template <typename Value>
  static PerPass each(const Value& value) {
    PerPass all;
    for (int pass = 0; pass < kinds; ++pass) all.*members[pass] = value(static_cast<ActionKind>(pass));
    return all;
  }

 private:
  static constexpr std::array<T PerPass::*, kinds> members = {
      &PerPass::forward,         &PerPass::backward,     &PerPass::backward_input,
      &PerPass::backward_weight, &PerPass::head_forward, &PerPass::head_backward};

  static T PerPass::*member(ActionKind pass) {
    const auto index = static_cast<size_t>(pass);
    if (index >= members.size())
      throw Error("no value for " + to_string({pass, 0, 0}) + ", which is no pass");
    return members[index];
  }
};

}  // namespace pptrain::schedule
