// cuDNN's own plans of attention for absent GPUs: it makes and sizes plans for a described device (its
// deviceless ahead-of-time compilation), with stand_in/driver.cpp as the driver. Nothing is run.
#include <spdlog/fmt/fmt.h>

#include <string>
#include <vector>

#include "core/attention/cudnn/cudnn_graph.h"
#include "core/attention/cudnn/cudnn_shape.h"
#include "core/attention/gpu.h"
#include "core/base/error.h"
#include "test/gpu/stand_in/described_device.h"
#include "test/support/catch.h"
#include "test/support/covering.h"

using namespace pptrain;
using namespace pptrain::attention;
using namespace stand_in;

namespace {

CudnnTarget describe(const Gpu& gpu) {
  return describe_device(described_device(gpu), gpu.capability);
}

// The strides of q, k and v in cudnn_attention.cpp: in one fused tensor, or apart (after QK-norm).
CudnnSizes sizes_of(const CallShape& call, bool fused) {
  const int64_t all = (call.heads + 2 * call.kv_heads) * call.head_dim, dim = call.head_dim;
  const CudnnShape shape = cudnn_shape(call.documents, call.longest, call.tokens, call.equal);
  return {.shape = shape,
          .heads = call.heads,
          .kv_heads = call.kv_heads,
          .head_dim = dim,
          .q = {fused ? all : call.heads * dim, dim},
          .k = {fused ? all : call.kv_heads * dim, dim},
          .v = {all, dim},
          .in_order = sums_in_order(shape, call.deterministic),
          .backward_parts = cudnn_backward_parts(call)};
}

CallShape call_of(const Gpu& gpu, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t documents,
                  int64_t longest, int64_t tokens, bool equal, bool deterministic) {
  return {.capability = gpu.capability,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .documents = documents,
          .longest = longest,
          .tokens = tokens,
          .equal = equal,
          .deterministic = deterministic};
}

std::string refusal(const CudnnSizes& sizes, const CudnnTarget& target) {
  try {
    make_backward_graph(sizes, target);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("cuDNN has plans where choose_on_gpu takes it, and their memory is what backward_scratch says") {
  struct Row {
    int64_t heads, kv_heads, head_dim, documents, longest, tokens;
    bool equal, fused;
  };
  const std::vector<Row> rows{
      {32, 8, 128, 2, 4096, 8192, true, true},    // Llama 3 8B
      {32, 8, 128, 1, 8192, 8192, true, false},   // in 4 parts if score gradients are written
      {32, 32, 128, 1, 4096, 4096, true, true},   // a key-value head for each head
      {32, 8, 128, 5, 3000, 8192, false, true},   // ragged, in 8 parts
      {28, 4, 128, 3, 1500, 4000, false, false},  // ragged, 7 heads for each key-value head
      {8, 2, 72, 3, 1000, 2500, false, true},     // ragged, no whole tiles of 16
      {16, 16, 64, 4, 1024, 4096, true, true},    // narrow heads
      {12, 12, 64, 1, 700, 700, true, true},      // one document that is no multiple of 64
      {8, 2, 96, 6, 128, 768, true, true},        // a padded width
      {6, 1, 80, 2, 192, 384, true, true},        // no whole tiles of 128
  };
  const Gpu& gpu = GENERATE_REF(kH200, kB200);
  const CudnnTarget target = describe(gpu);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Row& r = rows[i];
    // Blackwell's other mode has the same plans and reports no memory of its own. A plan takes nearly a
    // second: rows in order on Hopper are all tried, of the others every second one.
    for (const bool deterministic : {true, false}) {
      const bool blackwell = gpu.capability == kB200.capability;
      if (blackwell && !deterministic) continue;
      const bool has_turn = (!blackwell && deterministic) || i % 2 == (blackwell ? 0 : 1);
      if (!has_turn && !test::all_wanted()) continue;
      INFO(fmt::format("{}: {} heads, {} key-value heads of {}, {} documents, longest {}, deterministic {}",
                       gpu.name, r.heads, r.kv_heads, r.head_dim, r.documents, r.longest, deterministic));
      const CallShape call = call_of(gpu, r.heads, r.kv_heads, r.head_dim, r.documents, r.longest, r.tokens,
                                     r.equal, deterministic);
      REQUIRE(choose_on_gpu(call) == BackEnd::cudnn);
      const CudnnSizes sizes = sizes_of(call, r.fused);
      if (deterministic) CHECK(workspace_bytes(make_forward_graph(sizes, target)) < 65536);
      const int64_t bytes = workspace_bytes(make_backward_graph(sizes, target));
      const int64_t expected = backward_scratch(BackEnd::cudnn, call, gpu.multiprocessors);
      CHECK(bytes > expected - 65536);
      CHECK(bytes < expected + 65536);
    }
  }
}

TEST_CASE("cuDNN's own limits are those that choose_on_gpu knows") {
  const CallShape ragged = call_of(kA100, 8, 2, 64, 5, 300, 1000, false, false);
  CHECK(refusal(sizes_of(ragged, true), describe(kA100)).find("Deterministic") != std::string::npos);
  const CallShape wide = call_of(kB200, 8, 2, 256, 1, 1024, 1024, true, true);
  CHECK(refusal(sizes_of(wide, true), describe(kB200)).find("hidden_dim") != std::string::npos);
  for (const CallShape& call : {ragged, wide}) {
    CHECK(choose_on_gpu(call) == BackEnd::flash);
  }
}

TEST_CASE("a described device that cuDNN does not take") {
  CHECK_THROWS_AS(describe_device("{}", 90), Error);
}
