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

static const Loops* amx_loops() {
#if defined(__x86_64__)
  static const Loops with_tiles = [] {
    Loops loops = avx512bf16_table;
    loops.isa = "amx";
    loops.tiles = true;
    return loops;
  }();
  if (avx512bf16_loops() != nullptr && amx::is_supported()) return &with_tiles;
#endif
  return nullptr;
}

const Loops& choose_loops(std::string_view name) {
  std::string names;
  for (const Loops* table :
       {amx_loops(), avx512bf16_loops(), avx512_loops(), avx2_loops(), baseline_loops()}) {
    if (table == nullptr) continue;
    if (name.empty() || name == table->isa) return *table;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", table->isa);
  }
  throw UsageError(
      fmt::format("PPTRAIN_ISA is \"{}\", but this processor has: {}. Name one of these, or unset "
                  "PPTRAIN_ISA for the first",
                  name, names));
}

const Loops& loops() {
  static const Loops& chosen = []() -> const Loops& {
    const char* const name = std::getenv("PPTRAIN_ISA");
    return choose_loops(name == nullptr ? "" : name);
  }();
  return chosen;
}

}  // namespace pptrain::kernels::cpu
