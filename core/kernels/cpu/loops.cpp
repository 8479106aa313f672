#include "core/kernels/cpu/loops.h"

#include <spdlog/fmt/fmt.h>

#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "core/kernels/cpu/amx.h"

namespace pptrain::kernels::cpu {

const Loops* baseline_loops() {
  return &baseline_table;
}

const Loops* avx2_loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &avx2_table;
#endif
  return nullptr;
}

const Loops* avx512_loops() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("fma"))
    return &avx512_table;
#endif
  return nullptr;
}

const Loops* avx512bf16_loops() {
#if defined(__x86_64__)
  if (avx512_loops() != nullptr && __builtin_cpu_supports("avx512bf16")) return &avx512bf16_table;
#endif
  return nullptr;
}

Isa choose_isa(std::string_view name) {
  const Isa all[] = {{"amx", amx::is_supported() ? avx512bf16_loops() : nullptr, true},
                     {"avx512bf16", avx512bf16_loops(), false},
                     {"avx512", avx512_loops(), false},
                     {"avx2", avx2_loops(), false},
                     {"baseline", baseline_loops(), false}};
  std::string names;
  for (const Isa& isa : all) {
    if (isa.loops == nullptr) continue;
    if (name.empty() || name == isa.name) return isa;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", isa.name);
  }
  throw UsageError(
      fmt::format("PPTRAIN_ISA is \"{}\", but this processor has: {}. Name one of these, or unset "
                  "PPTRAIN_ISA for the first",
                  name, names));
}

const Isa& isa() {
  static const Isa chosen = [] {
    const char* const name = std::getenv("PPTRAIN_ISA");
    return choose_isa(name == nullptr ? "" : name);
  }();
  return chosen;
}

}  // namespace pptrain::kernels::cpu
