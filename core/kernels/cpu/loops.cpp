#include "core/kernels/cpu/loops.h"

#include <spdlog/fmt/fmt.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <cstdlib>
#include <string>

#include "core/base/error.h"
#include "core/kernels/cpu/amx.h"

namespace pptrain::kernels::cpu {

namespace {

#if defined(__x86_64__)
// Intel's cores from Sapphire Rapids on, which AVX512-FP16 tells from Cooper Lake: VDPBF16PS begins every
// other cycle, and multiplies and adds at half the rate of two float32 units (81 and 165 GFLOP/s on one core
// of an Emerald Rapids).
bool adds_pairs_slowly() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned avx512fp16 = 1u << 23;
  return __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & avx512fp16) != 0;
}
#endif

}  // namespace

std::vector<const Loops*> available_loops() {
  std::vector<const Loops*> tables;
#if defined(__x86_64__)
  static const Loops with_tiles = [] {
    Loops loops = avx512bf16_table;
    loops.isa = "amx";
    loops.tiles = true;
    return loops;
  }();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("fma");
  const bool avx512bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (avx512bf16 && amx::is_supported()) tables.push_back(&with_tiles);
  const bool widened_first = avx512bf16 && adds_pairs_slowly();
  if (widened_first) tables.push_back(&avx512_table);
  if (avx512bf16) tables.push_back(&avx512bf16_table);
  if (avx512 && !widened_first) tables.push_back(&avx512_table);
  if (avx2) tables.push_back(&avx2_table);
#endif
  tables.push_back(&baseline_table);
  return tables;
}

const Loops& choose_loops(std::string_view name) {
  std::string names;
  for (const Loops* table : available_loops()) {
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
