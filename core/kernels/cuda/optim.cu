#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "core/kernels/cuda/device.cuh"
#include "core/kernels/cuda/host.h"
#include "core/kernels/cuda/math.h"
#include "core/kernels/exact_sum.h"
#include "core/kernels/kernels.h"
#include "core/kernels/step_scalars.h"
#include "core/kernels/stochastic_rounding.h"

namespace pptrain::kernels::cuda {
namespace {

constexpr unsigned threads_per_block = 256;
constexpr int warps_per_block = static_cast<int>(threads_per_block) / warp_size;
constexpr int64_t most_partial_blocks = 1024;
constexpr int N = pack_width<float>;

// --- Many tensors in one launch: a table of them, which travels in the kernel's parameters ---

constexpr std::size_t parameter_bytes = 4096;  // of a launch, on every device and toolkit

// Parts and where their work items lie: part k has items [begin(k), ends[k]) of the launch.
template <typename Part>
struct PartTable {
  static constexpr std::size_t most =
      (parameter_bytes - 96 /* other parameters */) / (sizeof(Part) + sizeof(int64_t));
  Part parts[most];
  int64_t ends[most];
  int count;

  __device__ int64_t begin(int part) const { return part == 0 ? 0 : ends[part - 1]; }
  // The part that has the item.
  __device__ int find(int64_t item) const { return first_above(ends, 0, count - 1, item); }
};

// Calls run(table, items) for as many parts at a time as a table takes. items_of: a part's items; parts
// without items are left out.
template <typename Part, typename Items, typename Run>
void for_tables(std::span<const Part> parts, const Items& items_of, const Run& run) {
  static_assert(sizeof(PartTable<Part>) + 64 <= parameter_bytes);
  PartTable<Part> table{};
  int64_t items = 0;
  for (const Part& part : parts) {
    if (items_of(part) == 0) continue;
    items += items_of(part);
    table.parts[table.count] = part;
    table.ends[table.count++] = items;
    if (table.count < static_cast<int>(PartTable<Part>::most)) continue;
    run(table, items);
    table.count = 0;
    items = 0;
  }
  if (table.count > 0) run(table, items);
}

// --- AdamW and Lion ---

// Lion has no exp_avg_sq. T: of the moments.
template <typename T>
struct StepTensors {
  float* weight;
  const float* grad;
  T* exp_avg;
  T* exp_avg_sq;
  at::BFloat16* compute;  // may be null
  // What is overwritten goes here; all may be null.
  float* previous_weight;
  T* previous_exp_avg;
  T* previous_exp_avg_sq;
  int64_t size;
  StepScalars scalars;
  RoundingBits rounding;  // of bfloat16 moments
  bool is_vector;
};

// Rounds moments to T, stochastically to bfloat16: the first by the upper half of the random words of
// elements [i, i + valid), the second by the lower half.
template <typename T>
__device__ inline void round_moments(const RoundingBits& rounding, int64_t i, int64_t valid, float (&m)[N],
                                     float (&v)[N]) {
  if constexpr (std::is_same_v<T, at::BFloat16>) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t word = j < valid ? rounding.words(i + j).word(0) : 0;
      m[j] = at::BFloat16(round_stochastically(m[j], word >> 16), at::BFloat16::from_bits());
      v[j] = at::BFloat16(round_stochastically(v[j], word & 0xffffU), at::BFloat16::from_bits());
    }
  }
}

// Updates elements [i, i + min(N, valid)), by AdamW (kSquares) or by Lion.
template <bool kSquares, bool kVector, typename T>
__device__ inline void update_pack(const StepTensors<T>& t, int64_t i, int64_t valid) {
  float w[N];
  float g[N];
  float m[N];
  float v[N] = {};
  load<kVector>(t.weight + i, valid, w);
  load<kVector>(t.grad + i, valid, g);
  load<kVector>(t.exp_avg + i, valid, m);
  if constexpr (kSquares) {
    load<kVector>(t.exp_avg_sq + i, valid, v);
  }
  if (t.previous_weight != nullptr) {
    store<kVector>(t.previous_weight + i, valid, w);
    store<kVector>(t.previous_exp_avg + i, valid, m);
    if constexpr (kSquares) {
      store<kVector>(t.previous_exp_avg_sq + i, valid, v);
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const StepState now{w[j], m[j], v[j]};
    const StepState next = kSquares ? adamw_update(now, g[j], t.scalars) : lion_update(now, g[j], t.scalars);
    w[j] = next.weight;
    m[j] = next.exp_avg;
    v[j] = next.exp_avg_sq;
  }
  round_moments<T>(t.rounding, i, valid, m, v);
  store<kVector>(t.weight + i, valid, w);
  store<kVector>(t.exp_avg + i, valid, m);
  if constexpr (kSquares) {
    store<kVector>(t.exp_avg_sq + i, valid, v);
  }
  if (t.compute != nullptr) {
    store<kVector>(t.compute + i, valid, w);
  }
}

// One pack a thread; only a part's last may be incomplete.
template <bool kSquares, typename T>
__global__ void __launch_bounds__(threads_per_block)
    step_kernel(const __grid_constant__ PartTable<StepTensors<T>> table) {
  const int part = table.find(blockIdx.x);
  const StepTensors<T>& t = table.parts[part];
  const int64_t i = ((blockIdx.x - table.begin(part)) * blockDim.x + threadIdx.x) * N;
  if (t.is_vector && t.size - i >= N) {
    update_pack<kSquares, true, T>(t, i, N);
  } else if (i < t.size) {
    update_pack<kSquares, false, T>(t, i, t.size - i);
  }
}

// --- Muon ---

// Calls body(is_vector, i, valid) for the thread's pack: elements [i, i + valid) of `size`, whole packs at
// once with kVector.
template <bool kVector, typename Body>
__device__ inline void for_pack(int64_t size, const Body& body) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  if (size - i >= N) {
    body(std::bool_constant<kVector>{}, i, N);
  } else if (i < size) {
    body(std::false_type{}, i, size - i);
  }
}

// `next` may be `average`: a thread reads its elements before it writes them.
template <typename T, bool kVector>
__global__ void momentum_kernel(const float* average, const float* grad, T* next, int64_t size,
                                float grad_scale, float one_minus_beta) {
  for_pack<kVector>(size, [=](auto is_vector, int64_t i, int64_t valid) {
    float m[N];
    float g[N];
    load<decltype(is_vector)::value>(average + i, valid, m);
    load<decltype(is_vector)::value>(grad + i, valid, g);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      m[j] += (g[j] * grad_scale - m[j]) * one_minus_beta;
    }
    store<decltype(is_vector)::value>(next + i, valid, m);
  });
}

template <typename T, bool kVector>
__global__ void descend_kernel(float* weight, const T* direction, at::BFloat16* compute, int64_t size,
                               float decay, float step) {
  for_pack<kVector>(size, [=](auto is_vector, int64_t i, int64_t valid) {
    float w[N];
    float d[N];
    load<decltype(is_vector)::value>(weight + i, valid, w);
    load<decltype(is_vector)::value>(direction + i, valid, d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      w[j] = w[j] * decay - step * d[j];
    }
    store<decltype(is_vector)::value>(weight + i, valid, w);
    if (compute != nullptr) {
      store<decltype(is_vector)::value>(compute + i, valid, w);
    }
  });
}

// Blocks of one pack a thread.
int64_t block_count(int64_t size) {
  return ceil_div(ceil_div(size, N), threads_per_block);
}
unsigned blocks_of(int64_t size, const char* kernel) {
  return grid_size(block_count(size), kernel);
}

// --- Sums of squares ---

struct Squares {
  const float* x;  // the buffer's element `begin`
  int64_t begin;
  int64_t end;
  bool is_vector;  // packs of the buffer are aligned

  // The first block of the buffer that x has elements of.
  PPTRAIN_HOST_DEVICE int64_t first_block() const { return begin / squares_block; }
  PPTRAIN_HOST_DEVICE int64_t blocks() const {
    return begin == end ? 0 : (end - 1) / squares_block + 1 - first_block();
  }
};

// A warp's sum of squares of one block of the buffer: lane l takes packs l, l + 32, ... of the block, of
// which elements outside of [begin, end) read as 0. All packs of a lane are in flight at once.
__device__ inline double block_squares(const Squares& part, int64_t block) {
  constexpr int packs = static_cast<int>(squares_block) / (warp_size * N);
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t start = block * squares_block;
  float a[packs][N];
  if (part.is_vector && start >= part.begin && part.end - start >= squares_block) {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      load<true>(part.x + (start - part.begin) + (p * warp_size + lane) * N, N, a[p]);
    }
  } else {
#pragma unroll
    for (int p = 0; p < packs; ++p) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int64_t at = start + (p * warp_size + lane) * N + j;
        a[p][j] = at >= part.begin && at < part.end ? part.x[at - part.begin] : 0.0F;
      }
    }
  }
  double sum = 0.0;
#pragma unroll
  for (int p = 0; p < packs; ++p) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      sum = fma(static_cast<double>(a[p][j]), static_cast<double>(a[p][j]), sum);
    }
  }
  return group_sum(sum, warp_size);
}

// One warp for each block of the parts' buffers, and for every (warps of the grid)th after. A warp adds its
// blocks up in words of its own, then to all: sums of integers have no order.
__global__ void __launch_bounds__(threads_per_block)
    add_squares_kernel(const __grid_constant__ PartTable<Squares> table, int64_t blocks,
                       unsigned long long* sum) {
  __shared__ unsigned long long own[warps_per_block][exact_words];
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  if (lane < exact_words) {
    own[warp][lane] = 0;
  }
  __syncthreads();
  const int64_t stride = static_cast<int64_t>(gridDim.x) * warps_per_block;
  int part = 0;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * warps_per_block + warp; i < blocks; i += stride) {
    while (i >= table.ends[part]) {
      ++part;
    }
    const Squares& squares_of = table.parts[part];
    const double squares = block_squares(squares_of, squares_of.first_block() + (i - table.begin(part)));
    if (lane != 0) {
      continue;
    }
    if (!is_exact_term(squares)) {
      ++own[warp][exact_limbs];
      continue;
    }
    const ExactTerm term = exact_term(squares);
    for (int limb = 0; limb < 3 && term.limb + limb < exact_limbs; ++limb) {
      own[warp][term.limb + limb] += term.pieces[limb];
    }
  }
  __syncthreads();
  if (lane < exact_words && own[warp][lane] != 0) {
    atomicAdd(sum + lane, own[warp][lane]);
  }
}

template <typename T>
StepTensors<T> tensors_of(const StepPart& part, const StepScalars& scalars) {
  const StepPrevious previous = part.previous.value_or(StepPrevious{});
  StepTensors<T> t{.weight = output<float>(part.weight),
                   .grad = input<float>(part.grad),
                   .exp_avg = output<T>(part.exp_avg),
                   .exp_avg_sq = output<T>(part.exp_avg_sq),
                   .compute = output<at::BFloat16>(part.compute),
                   .previous_weight = output<float>(previous.weight),
                   .previous_exp_avg = output<T>(previous.exp_avg),
                   .previous_exp_avg_sq = output<T>(previous.exp_avg_sq),
                   .size = part.weight.numel(),
                   .scalars = scalars,
                   .rounding = part.rounding,
                   .is_vector = false};
  t.is_vector = are_aligned(t.weight, t.grad, t.exp_avg, t.exp_avg_sq, t.compute, t.previous_weight,
                            t.previous_exp_avg, t.previous_exp_avg_sq);
  return t;
}

// One launch for as many parts as its parameters take.
template <bool kSquares>
void step(const char* name, StepScalars (*scalars)(const StepArgs&), const std::vector<StepPart>& parts) {
  const DeviceGuard guard(parts.front().weight.device());
  with_type(parts.front().exp_avg.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    std::vector<StepTensors<T>> tensors;
    for (const StepPart& part : parts) {
      tensors.push_back(tensors_of<T>(part, scalars(part.args)));
    }
    for_tables(
        std::span<const StepTensors<T>>(tensors), [](const StepTensors<T>& t) { return block_count(t.size); },
        [&](const PartTable<StepTensors<T>>& table, int64_t blocks) {
          launch(name, step_kernel<kSquares, T>, grid_size(blocks, name), threads_per_block, 0, table);
        });
  });
}

}  // namespace

void adamw(const std::vector<StepPart>& parts) {
  step<true>("adamw", adamw_scalars, parts);
}

void lion(const std::vector<StepPart>& parts) {
  step<false>("lion", lion_scalars, parts);
}

void momentum(const Tensor& average, const Tensor& grad, Tensor& next, double beta, double grad_scale) {
  const char* const name = "momentum";
  const int64_t size = average.numel();
  if (size == 0) {
    return;
  }
  const DeviceGuard guard(average.device());
  with_type(next.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    with_bool(are_aligned(input<float>(average), input<float>(grad), input<T>(next)), [&](auto is_vector) {
      launch(name, momentum_kernel<T, decltype(is_vector)::value>, blocks_of(size, name), threads_per_block,
             0, input<float>(average), input<float>(grad), output<T>(next), size,
             static_cast<float>(grad_scale), static_cast<float>(1.0 - beta));
    });
  });
}

void descend(Tensor& weight, const Tensor& direction, const std::optional<Tensor>& compute, double decay,
             double step) {
  const char* const name = "descend";
  const int64_t size = weight.numel();
  if (size == 0) {
    return;
  }
  const DeviceGuard guard(weight.device());
  at::BFloat16* const rounded = output<at::BFloat16>(compute);
  with_type(direction.scalar_type(), name, [&](auto tag) {
    using T = decltype(tag);
    const bool vector = are_aligned(input<float>(weight), input<T>(direction), rounded);
    with_bool(vector, [&](auto is_vector) {
      launch(name, descend_kernel<T, decltype(is_vector)::value>, blocks_of(size, name), threads_per_block, 0,
             output<float>(weight), input<T>(direction), rounded, size, static_cast<float>(decay),
             static_cast<float>(step));
    });
  });
}

void add_squares(const std::vector<BufferPart>& parts, Tensor& sum) {
  const DeviceGuard guard(sum.device());
  std::vector<Squares> squares;
  for (const BufferPart& part : parts) {
    // Packs lie in the buffer, whose start is aligned if x is a multiple of a pack away from it.
    const float* const x = input<float>(part.x);
    squares.push_back({x, part.place, part.place + part.x.numel(), part.place % N == 0 && are_aligned(x)});
  }
  for_tables(
      std::span<const Squares>(squares), [](const Squares& part) { return part.blocks(); },
      [&](const PartTable<Squares>& table, int64_t blocks) {
        const int64_t grid = std::min(ceil_div(blocks, warps_per_block), most_partial_blocks);
        launch("add_squares", add_squares_kernel, static_cast<unsigned>(grid), threads_per_block, 0, table,
               blocks, output<unsigned long long>(sum));
      });
}

void add_optim_kernels() {
  kernels::adamw.implement(BackEnd::cuda, adamw);
  kernels::add_squares.implement(BackEnd::cuda, add_squares);
  kernels::lion.implement(BackEnd::cuda, lion);
  kernels::momentum.implement(BackEnd::cuda, momentum);
  kernels::descend.implement(BackEnd::cuda, descend);
}

}  // namespace pptrain::kernels::cuda
