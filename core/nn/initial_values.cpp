// Initial values of parameters: a function of name, seed and the element's place alone.
#include <string_view>

#include "core/kernels/kernels.h"
#include "core/nn/parameter.h"

namespace pptrain::nn {
namespace {

// FNV-1a (Fowler, Noll, Vo) over the bytes of the name.
uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return hash;
}

// Finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014): every input bit reaches every output bit.
uint64_t mix(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

}  // namespace

void fill_initial_values(const ParameterSpec& spec, const SliceShape& slice, uint64_t seed, at::Tensor& out) {
  switch (spec.init) {
    case Init::ones:
      out.fill_(1);
      return;
    case Init::zeros:
      out.zero_();
      return;
    case Init::normal: {
      const uint64_t key = mix(hash_name(spec.init_name.empty() ? spec.name : spec.init_name) ^ mix(seed));
      const at::Tensor flat = out.view({-1});
      for (const ElementRun& run : element_runs(slice)) {
        at::Tensor values = flat.narrow(0, run.local, run.length);
        kernels::normal_values(values, key, run.global, spec.init_std);
      }
      return;
    }
  }
}

}  // namespace pptrain::nn
