// train.recompute as stages see it.
#include "core/config/recomputation.h"

#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/support/catch.h"

using namespace pptrain::config;
using enum pptrain::config::Recompute;

namespace {

using Levels = std::vector<Recompute>;

Recomputation recomputation(std::vector<std::string> words) {
  Recomputation result;
  result.words = std::move(words);
  return result;
}

}  // namespace

TEST_CASE("words of recompute say the levels of microbatches, and read back") {
  const std::vector<Levels> stages{
      {full, full, cheap, full, full, cheap, full, full}, {none}, {none, none}, {none, full, none, none}};
  const Recomputation written(stages);
  CHECK(written.words == std::vector<std::string>{"full:2/cheap:1", "none", "none", "none:1/full:1/none:1"});
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const Levels levels = written.levels(static_cast<int>(stage));
    for (size_t mb = 0; mb < stages[stage].size(); ++mb)
      CHECK(levels[mb % levels.size()] == stages[stage][mb]);
  }
  CHECK(written.by_microbatch());
  CHECK(written.most(0) == full);
  CHECK(written.most(2) == none);
  CHECK(written.word(3) == "none:1/full:1/none:1");
  CHECK(written.describe(8, 1) ==
        "full (2 of 8 microbatches cheap), 2 none, full (5 of 8 microbatches none)");
  CHECK(recomputation({"full:1/cheap:2/none:1"}).describe(4, 1) ==
        "full (2 of 4 microbatches cheap, 1 none)");
  CHECK(recomputation({"full:1/cheap:3"}).describe(2, 8) == "full (12 of 16 slices cheap)");
}

TEST_CASE("stages that recompute alike have one word") {
  CHECK(Recomputation(std::vector<Levels>{{full, none}, {full, none}}) == recomputation({"full:1/none:1"}));
  CHECK(Recomputation(Levels{cheap, cheap, cheap}) == cheap);
  CHECK(Recomputation(Levels{cheap, none}) == recomputation({"cheap", "none"}));
  CHECK_FALSE(Recomputation(Levels{cheap, none}).by_microbatch());
  for (const Recompute level : all_recomputes) CHECK(Recomputation(level).most(5) == level);
}

TEST_CASE("words of recompute are one, or as many as the stages, and auto stands alone") {
  CHECK(Recomputation().is_auto());
  CHECK_NOTHROW(recomputation({"cheap", "none"}).check(2));
  CHECK_THROWS_AS(recomputation({"cheap", "none"}).check(3), pptrain::UsageError);
  CHECK_THROWS_AS(recomputation({"full", "auto"}).check_words(), pptrain::UsageError);
}

TEST_CASE("runs are words with counts, and nothing else is one") {
  using Runs = std::vector<std::pair<std::string_view, int>>;
  CHECK(parse_runs("full:3/cheap:2") == Runs{{"full", 3}, {"cheap", 2}});
  for (const char* wrong :
       {"", "full", "full:3/none", "full:0", "full:/none:1", "full:1/", "full:-1", "full:100000"})
    CHECK_FALSE(parse_runs(wrong).has_value());
}
