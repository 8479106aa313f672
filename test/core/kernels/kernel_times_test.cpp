// The clock of kernels: which calls it counts, and on which thread.
#include "core/kernels/kernel_times.h"

#include <optional>
#include <thread>

#include "core/kernels/kernels.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using kernels::KernelClock;
using kernels::KernelTimes;

TEST_CASE("a clock counts the kernels of its thread, GEMMs by shape, and what they cost", "[kernel_times]") {
  const at::Tensor x = at::ones({6, 10}), weight = at::ones({20, 10}), wide = at::ones({30, 10});
  at::Tensor y = at::zeros({6, 20}), z = at::zeros({6, 30}), act = at::zeros({6, 10});
  const auto linear = [&](const at::Tensor& w, at::Tensor& out) { kernels::linear(x, w, std::nullopt, out); };
  KernelTimes times, inner;
  {
    const KernelClock clock(times);
    linear(weight, y);
    linear(weight, y);
    linear(wide, z);
    kernels::swiglu(y, act);
    std::thread([&] { linear(weight, y); }).join();  // another thread's
    {
      const KernelClock nested(inner);
      linear(weight, y);
    }
  }
  linear(weight, y);  // no clock is running
  REQUIRE(times.size() == 3);
  REQUIRE(inner.size() == 1);
  const auto& [first, time] = *inner.begin();
  CHECK(first.first == "linear");
  CHECK(first.second == kernels::GemmShape{6, 20, 10});
  CHECK(time.calls == 1);
  CHECK(times.at(first).calls == 2);
  CHECK(times.at(first).cost.product_flops == 2 * 2 * 6 * 20 * 10);
  CHECK(times.at({"linear", kernels::GemmShape{6, 30, 10}}).calls == 1);
  const kernels::KernelTime& swiglu = times.at({"swiglu", std::nullopt});
  CHECK(swiglu.calls == 1);
  CHECK(swiglu.cost.bytes == (6 * 20 + 6 * 10) * 4);
  CHECK(swiglu.seconds > 0);
  CHECK(y[0][0].item<float>() == 10);  // the work was done
}
