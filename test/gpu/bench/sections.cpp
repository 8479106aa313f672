#include "test/gpu/bench/sections.h"

namespace pptrain::bench {

std::span<const Section> sections() {
  constexpr double tera = 1e-12, micro = 1e6, percent = 100;
  static const std::vector<Section> all = {
      {"copy", measure_copy, {{"copy", "name"}, {"bytes", "bytes"}, {"TB/s", "bytes_per_s", tera, 3}}},
      {"products",
       measure_products,
       {{"kind", "kind"},
        {"product", "name"},
        {"kernel", "kernel"},
        {"form", "form"},
        {"rows", "rows"},
        {"us", "seconds", micro, 1},
        {"TFLOP/s", "flops_per_s", tera, 1},
        {"without quantising", "gemm_flops_per_s", tera, 1}}},
      {"attention",
       measure_attention,
       {{"back end", "name"},
        {"pass", "pass"},
        {"sequence", "sequence"},
        {"us", "seconds", micro, 1},
        {"TFLOP/s", "flops_per_s", tera, 1}}},
      {"kernels",
       measure_kernels,
       {{"kernel", "name"},
        {"us", "seconds", micro, 1},
        {"host us", "host_s", micro, 1},
        {"TB/s", "bytes_per_s", tera, 3},
        {"% of copy", "share", percent, 1}}},
      {"stages",
       measure_stages,
       {{"stage", "name"},
        {"sequence", "sequence"},
        {"recompute", "recompute"},
        {"backward", "backward"},
        {"attention", "attention"},
        {"tokens/s", "tokens_per_s"},
        {"MFU %", "mfu", percent, 1},
        {"GB", "peak_bytes", 1e-9, 1},
        {"host ms", "host_s", 1e3, 2},
        {"device ms", "microbatch_s", 1e3, 2},
        {"syncs", "host_syncs"}}},
      {"profile",
       measure_profile,
       {{"stage", "name"},
        {"sequence", "sequence"},
        {"kernel", "kernel"},
        {"calls", "calls"},
        {"us", "seconds", micro, 1},
        {"% of time", "share", percent, 1}}}};
  return all;
}

}  // namespace pptrain::bench
