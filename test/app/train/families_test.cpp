// Every family gives the bits of one rank on pipelines and shards; with tp, cp and ep nearly those, or is
// refused.
#include <cmath>

#include "core/base/error.h"
#include "models/registry.h"
#include "test/app/checkpoint_elements.h"
#include "test/app/family_jobs.h"
#include "test/support/catch.h"

using namespace pptrain;
using test::Overrides;

namespace {

struct Run {
  test::JobResult result;
  std::map<std::string, std::string> elements;
};

class Family {
 public:
  explicit Family(const models::Architecture& family) : settings_(test::family_settings(family)) {}

  Run run(const Overrides& layout) const {
    Run made{.result = test::run_small_job(test::family_job_text(), folder_.path() / "run",
                                           with(settings_, layout)),
             .elements = test::checkpoint_elements(folder_.path() / "run")};
    REQUIRE(made.result.exit_code == 0);
    REQUIRE(made.result.metrics.size() == 3);  // and what validation says
    return made;
  }

 private:
  Overrides settings_;
  test::TemporaryFolder folder_;
};

void check_equal(const Run& made, const Run& expected) {
  REQUIRE(expected.elements.size() > 100);
  CHECK(made.result.metrics == expected.result.metrics);
  CHECK(made.elements == expected.elements);
}

void check_close(const Run& made, const Run& expected) {
  for (size_t step = 0; step < 2; ++step) {
    const auto ours = nlohmann::json::parse(made.result.metrics[step]),
               theirs = nlohmann::json::parse(expected.result.metrics[step]);
    for (const char* key : {"loss", "grad_norm"})
      CHECK(ours.at(key).get<double>() == Approx(theirs.at(key).get<double>()).epsilon(2e-5));
  }
}

}  // namespace

TEST_CASE("every family gives the bits of one rank under any pipeline and over shards", "[families]") {
  for (const models::Architecture* architecture : models::architectures) {
    CAPTURE(architecture->name);
    const Family family(*architecture);
    const Run one = family.run({});
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=zb_h1"}), one);
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=zbv", "train.recompute=full"}), one);
    const Run replicas = family.run({"distributed.dp_replicate=2"});
    check_equal(family.run({"distributed.dp_shard=2", "distributed.reshard_after_forward=true"}), replicas);
    check_equal(family.run({"distributed.pp=2", "distributed.pp_schedule=interleaved_1f1b",
                            "distributed.dp_shard=2"}),
                replicas);
  }
}

TEST_CASE("every family trains alike on ranks that share out heads, rows or experts, or is refused",
          "[families]") {
  for (const models::Architecture* architecture : models::architectures) {
    CAPTURE(architecture->name);
    const Family family(*architecture);
    const Run one = family.run({});
    if (architecture->decoder.qk_norm == nn::QkNorm::whole) {
      CHECK_THROWS_AS(family.run({"distributed.tp=2"}), UsageError);
    } else {
      check_close(family.run({"distributed.tp=2", "distributed.pp=2", "distributed.pp_schedule=zbv"}), one);
    }
    for (const char* kind : {"ring", "ulysses"})
      check_close(family.run({"distributed.cp=2", fmt::format("distributed.cp_kind={}", kind)}), one);
    if (architecture->sparse) check_close(family.run({"distributed.cp=2", "distributed.ep=2"}), one);
  }
}
