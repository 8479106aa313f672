// Runs that agree to the bit, or but for rounding.
#pragma once

#include <string_view>
#include <vector>

#include "test/app/small_job.h"
#include "test/support/bounds.h"
#include "test/support/catch.h"

namespace pptrain::test {

// The small job with these options, in a folder of its own: three steps and an evaluation at least.
inline JobResult run(const Overrides& overrides) {
  const TemporaryFolder folder;
  JobResult result = run_small_job(small_job_text(), folder.path() / "run", overrides);
  REQUIRE(result.exit_code == 0);
  REQUIRE(result.metrics.size() >= 4);
  return result;
}

// Metrics and checkpoints have equal bits, and there are some.
inline void check_equal(const JobResult& reference, const JobResult& other) {
  REQUIRE(other.exit_code == 0);
  REQUIRE(reference.metrics.size() >= 2);
  REQUIRE(reference.checksums.size() > 30);
  CHECK(other.metrics == reference.metrics);
  CHECK(other.checksums == reference.checksums);
}

// AdamW with this eps follows gradients that are small beside it. With the usual one its first steps are as
// long for a weight whose gradient is next to nothing as for any other, and rounding decides their direction.
inline const Overrides smooth_steps = {"optimizer.eps=0.01"};

// How far runs with smooth steps may be apart: parts of their losses and of their gradient norms. Sums in
// float32 differ by units of 2^-24, which depth and steps multiply by ten or so. In bfloat16 every activation
// is rounded, by half of 2^-8, which most tokens of a loss cancel.
struct Apart {
  double losses, norms;
};
inline constexpr Apart apart_fp32 = {.losses = 2e-6, .norms = 5e-6},
                       apart_bf16 = {.losses = 5e-3, .norms = 3e-2};

// Losses and gradient norms differ by these parts of themselves at most, tokens not at all.
inline void check_near(const JobResult& a, const JobResult& b, const Apart& apart,
                       CallSite place = CallSite::current()) {
  REQUIRE(a.metrics.size() == b.metrics.size());
  for (size_t i = 0; i < a.metrics.size(); ++i) {
    const auto x = nlohmann::json::parse(a.metrics[i]), y = nlohmann::json::parse(b.metrics[i]);
    CHECK(x.value("tokens", 0.0) == y.value("tokens", 0.0));
    for (const char* key : {"loss", "grad_norm", "eval_loss"}) {
      if (!x.contains(key)) continue;
      CAPTURE(i, key);
      const double most = std::string_view(key) == "grad_norm" ? apart.norms : apart.losses;
      CHECK(relative_error(x.at(key).get<double>(), y.at(key).get<double>(), place) <= most);
    }
    const auto of = [](const nlohmann::json& line) {
      return line.value("microbatch_losses", std::vector<double>());
    };
    const std::vector<double> losses = of(x), others = of(y);
    REQUIRE(losses.size() == others.size());
    for (size_t m = 0; m < losses.size(); ++m)
      CHECK(relative_error(losses[m], others[m], place) <= apart.losses);
  }
}

}  // namespace pptrain::test
