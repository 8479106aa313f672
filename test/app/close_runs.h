// Runs that agree to the bit, or up to rounding.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "test/app/checkpoint_elements.h"
#include "test/app/small_job.h"
#include "test/support/bounds.h"
#include "test/support/catch.h"

namespace pptrain::test {

// Runs the small job with these options in its own folder: at least three steps and an evaluation.
inline JobResult run(const Overrides& overrides) {
  const TemporaryFolder folder;
  JobResult result = run_small_job(small_job_text(), folder.path() / "run", overrides);
  REQUIRE(result.exit_code == 0);
  REQUIRE(result.metrics.size() >= 4);
  return result;
}

// Checks that metrics and checkpoints exist and have equal bits.
inline void check_equal(const JobResult& reference, const JobResult& other) {
  REQUIRE(other.exit_code == 0);
  REQUIRE(reference.metrics.size() >= 2);
  REQUIRE(reference.checksums.size() > 30);
  CHECK(other.metrics == reference.metrics);
  CHECK(other.checksums == reference.checksums);
}

// The same of runs whose slices lie elsewhere; they left their folders. moments: their type.
inline void check_equal_elements(const fs::path& reference, const fs::path& other,
                                 at::ScalarType moments = at::kFloat) {
  const auto expected = checkpoint_elements(reference, moments);
  REQUIRE(expected.size() > 30);
  CHECK(checkpoint_elements(other, moments) == expected);
  CHECK(read_result(other, 0).metrics == read_result(reference, 0).metrics);
}

// With this eps AdamW's step is proportional to gradients that are small compared with it. With the usual eps
// its first steps have one length for every weight, and rounding decides the direction of near-zero
// gradients.
inline const Overrides smooth_steps = {"optimizer.eps=0.01"};

// Relative bounds on the losses and gradient norms of two runs with smooth steps. Sums in float32 differ by
// units of 2^-24; depth and steps multiply that by about ten. In bfloat16 every activation is rounded by half
// of 2^-8; over the tokens of a loss most of that cancels.
struct Apart {
  double losses, norms;
};
inline constexpr Apart apart_fp32 = {.losses = 2e-6, .norms = 5e-6},
                       apart_bf16 = {.losses = 5e-3, .norms = 3e-2};

// Checks that losses and gradient norms are within these relative bounds, and token counts are equal.
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
