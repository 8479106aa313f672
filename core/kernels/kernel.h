// A kernel: a function on tensors that each back end implements for its device. kernels.h declares the
// kernels, contracts.cpp says what each of them accepts and costs, and every back end hands in its
// implementations.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/kernels/back_ends.h"
#include "core/kernels/checks.h"
#include "core/kernels/cost.h"
#include "core/kernels/dry_run.h"
#include "core/kernels/kernel_times.h"

namespace pptrain::kernels {

template <class Signature>
class Kernel;

// The first argument is a tensor, or a list of parts, each of which has a first() tensor; its device chooses
// the back end.
template <class... Args>
class Kernel<void(Args...)> {
 public:
  // How checks and costs see an argument: they change none.
  template <class T>
  using Seen = std::conditional_t<std::is_reference_v<T>, const std::remove_reference_t<T>&, T>;
  using Function = void (*)(Args...);
  using Check = void (*)(const Checks&, Seen<Args>...);
  using CostOf = Cost (*)(Seen<Args>...);
  using GemmOf = GemmShape (*)(Seen<Args>...);
  using ScratchOf = int64_t (*)(Seen<Args>...);

  // The name is the kernel's in messages. Constant initialisation: kernels exist before any code runs.
  explicit constexpr Kernel(const char* name) : name_(name) {}
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  // Checks the arguments, then runs the implementation for the device of the first one. Throws Error if the
  // check fails, a list has no parts, or that back end lacks the kernel. In a DryRun, with tensors of the
  // meta device, it records its cost and does nothing else. A KernelClock of this thread times it on a CPU.
  void operator()(Args... args) const {
    define_kernels();
    const at::Tensor& first = first_of(args...);
    check_(Checks(name_, first), args...);
    if (first.is_meta()) {
      if (gpu_scratch_ != nullptr) record_scratch(gpu_scratch_(args...));
      if (cpu_scratch_ != nullptr) record_scratch(cpu_scratch_(args...), BackEnd::cpu);
      return record(cost_(args...));
    }
    const Function function = find(first.is_cuda() ? BackEnd::cuda : BackEnd::cpu);
    if (!KernelClock::runs() || first.is_cuda()) return function(args...);
    KernelClock::time({name_, gemm_ == nullptr ? std::nullopt : std::optional(gemm_(args...))},
                      cost_(args...), [&] { function(args...); });
  }

  // One back end's implementation, without the checks. Throws Error if there is none.
  Function implementation(BackEnd back_end) const {
    define_kernels();
    return find(back_end);
  }

  // The functions that define_kernels calls call this once for each kernel, and once for each back end that
  // has it. Without a cost it moves each tensor of its arguments once. gemm: which one, of a kernel that is
  // one GEMM.
  void accept(Check check, CostOf cost = move_each, GemmOf gemm = nullptr) {
    check_ = check;
    cost_ = cost;
    gemm_ = gemm;
    if (gemm != nullptr) takes_on_gpu([](Seen<Args>...) { return gemm_workspace_bytes; });
  }
  // For a kernel that takes much memory there in addition to its arguments: how many bytes at most.
  void takes_on_gpu(ScratchOf scratch) { gpu_scratch_ = scratch; }
  void takes_on_cpu(ScratchOf scratch) { cpu_scratch_ = scratch; }
  void implement(BackEnd back_end, Function function) { functions_[index(back_end)] = function; }

 private:
  static Cost move_each(Seen<Args>... args) { return moving(args...); }
  static constexpr std::size_t index(BackEnd back_end) { return static_cast<std::size_t>(back_end); }
  template <class... Rest>
  const at::Tensor& first_of(const at::Tensor& first, const Rest&...) const {
    return first;
  }
  template <class Part, class... Rest>
  const at::Tensor& first_of(const std::vector<Part>& parts, const Rest&...) const {
    if (parts.empty()) fail_without_parts(name_);
    return parts.front().first();
  }

  Function find(BackEnd back_end) const {
    const Function function = functions_[index(back_end)];
    if (function == nullptr) fail_without_implementation(name_, back_end);
    return function;
  }

  const char* name_;
  Check check_ = nullptr;
  CostOf cost_ = nullptr;
  GemmOf gemm_ = nullptr;
  ScratchOf gpu_scratch_ = nullptr, cpu_scratch_ = nullptr;
  std::array<Function, 2> functions_{};
};

}  // namespace pptrain::kernels
