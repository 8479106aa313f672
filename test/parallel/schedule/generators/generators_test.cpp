#include "parallel/schedule/generators/generators.h"

#include <algorithm>

#include "core/base/error.h"
#include "parallel/schedule/cost/memory.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::schedule;
using pptrain::test::contains_text;

namespace {

// The peak number of stage-microbatches that any rank holds from F to W, by the table of definitions. The
// peak is reached from `reached_from` microbatches on.
struct Bound {
  int held = 0;
  int reached_from = 1;
};

Bound bound_of(const Schedule& s) {
  const int p = s.ranks;
  const int v = s.stages_per_rank;
  const int m = s.microbatches;
  const int round = m / std::max(1, m / p);
  const std::string& name = s.name;
  if (name == "gpipe" || name == "looped_bfs") return {m * v, 1};
  if (name == "1f1b" || name == "zb_h1") return {std::min(p, m), 1};
  if (name == "zb_h2") return {std::min(2 * p - 1, m), 1};
  if (name == "interleaved_1f1b") return {std::min((v - 1) * round + 2 * p - 1, m * v), 1};
  if (name == "interleaved_zb") return {std::min((v - 1) * round + p, m * v), 1};
  if (name == "zbv") return {std::min(2 * p, 2 * m), 1};
  if (name == "v_half") return {2 * ((p + 2) / 2), 2 * p};
  if (name == "v_min") return {2 * ((p + 4) / 3), 2 * p};
  if (name == "dualpipe_v") return {2 * p + 1, 2 * p + 1};
  return {0, 1};  // inference
}

void check_memory(const Schedule& s) {
  const Bound bound = bound_of(s);
  int held = 0;
  for (const InFlight& peak : in_flight(s)) {
    held = std::max(held, peak.held);
    if (peak.activations > peak.held) FAIL("more activations than all that is held");
  }
  if (held > bound.held || (s.microbatches >= bound.reached_from && held != bound.held)) {
    FAIL(s.name << " p " << s.ranks << " v " << s.stages_per_rank << " m " << s.microbatches << " holds "
                << held << ", by the table " << bound.held);
  }
}

// Every channel of a rank may have one message in use and one ahead. A few more may wait if a channel's order
// needs it.
void check_buffers(const Schedule& s) {
  for (const InFlight& peak : in_flight(s)) {
    if (peak.receive_buffers > 2 + 2 * s.stages_per_rank) {
      FAIL(s.name << " p " << s.ranks << " v " << s.stages_per_rank << " m " << s.microbatches << " has "
                  << peak.receive_buffers << " receive buffers");
    }
  }
}

}  // namespace

TEST_CASE("every schedule is sound for every size that it allows, within its memory") {
  int proven = 0;
  CHECK(canonical_schedule_name("ScheduleInterleaved1F1B") == "interleaved_1f1b");
  CHECK(canonical_schedule_name("LoopedBFS") == "looped_bfs");
  CHECK(canonical_schedule_name("ScheduleInterleavedZeroBubble") == "interleaved_zb");
  CHECK(canonical_schedule_name("ScheduleZBVZeroBubble") == "zbv");
  CHECK(canonical_schedule_name("ScheduleDualPipeV") == "dualpipe_v");
  CHECK(canonical_schedule_name("DualPipeV") == "dualpipe_v");
  CHECK(canonical_schedule_name("ZB-H1") == "zb_h1");
  for (const std::string& name : schedule_names()) {
    int sizes = 0;
    for (int p = 1; p <= 16; ++p) {
      for (int m = 1; m <= 64; ++m) {
        for (int v = 1; v <= 4; ++v) {
          Schedule s;
          try {
            s = make_schedule({.name = name, .ranks = p, .microbatches = m, .stages_per_rank = v});
          } catch (const UsageError&) {
            continue;
          }
          validate(s);
          check_memory(s);
          ++sizes;
          // Lowering proves each pass by itself. Every seventh size, and all small ones.
          if ((p + m + v) % 7 == 0 || (p <= 4 && m <= 8)) check_buffers(lower(s));
        }
      }
    }
    INFO(name);
    CHECK(sizes >= 768);
    proven += sizes;
  }
  CHECK(proven > 19000);
}

TEST_CASE("1f1b holds min(p - r, m) on rank r") {
  for (int p = 1; p <= 16; ++p) {
    for (const int m : {p, p + 3, 64}) {
      const auto peaks = in_flight(lower(make_schedule({.name = "1f1b", .ranks = p, .microbatches = m})));
      for (int r = 0; r < p; ++r) {
        CHECK(peaks[r].activations == std::min(p - r, m));
        CHECK(peaks[r].receive_buffers <= 4);
      }
    }
  }
}

TEST_CASE("names are found in any spelling") {
  CHECK(canonical_schedule_name("Schedule1F1B") == "1f1b");
  CHECK(canonical_schedule_name("1F1B") == "1f1b");
  CHECK(canonical_schedule_name("ScheduleGPipe") == "gpipe");
  CHECK(canonical_schedule_name("GPIPE") == "gpipe");
  for (const std::string& name : schedule_names()) CHECK(canonical_schedule_name(name) == name);
  CHECK_THROWS_WITH(canonical_schedule_name("2f2b"), contains_text("2f2b") && contains_text("1f1b"));
  CHECK_THROWS_WITH(make_schedule({.name = "seq1f1b", .ranks = 2, .microbatches = 4}),
                    contains_text("give 1f1b and distributed.pp_sequence_slices"));
}

TEST_CASE("sizes that a schedule does not allow are refused with what to change") {
  CHECK_THROWS_AS(make_schedule({.name = "1f1b", .ranks = 4, .microbatches = 3}), UsageError);
  CHECK_THROWS_WITH(make_schedule({.name = "1f1b", .ranks = 4, .microbatches = 3}),
                    contains_text("at least 4"));
  CHECK_THROWS_WITH(make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 4, .stages_per_rank = 2}),
                    contains_text("interleaved_1f1b"));
  CHECK_THROWS_AS(make_schedule({.name = "gpipe", .ranks = 0, .microbatches = 4}), UsageError);
  CHECK_THROWS_AS(make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 0}), UsageError);
  CHECK_THROWS_AS(make_schedule({.name = "gpipe", .ranks = 2, .microbatches = 2, .stages_per_rank = -1}),
                  UsageError);
  CHECK_THROWS_WITH(make_schedule({.name = "interleaved_1f1b", .ranks = 4, .microbatches = 9}),
                    contains_text("use 8 or 10 microbatches"));
  CHECK_NOTHROW(make_schedule({.name = "interleaved_1f1b", .ranks = 4, .microbatches = 10}));
  CHECK_THROWS_WITH(make_schedule({.name = "interleaved_zb", .ranks = 4, .microbatches = 9}),
                    contains_text("rounds"));
  CHECK_THROWS_WITH(make_schedule({.name = "zbv", .ranks = 2, .microbatches = 4, .stages_per_rank = 3}),
                    contains_text("exactly 2 stages per rank"));
  CHECK_THROWS_WITH(make_schedule({.name = "dualpipe_v", .ranks = 4, .microbatches = 7}),
                    contains_text("at least 8"));
}

TEST_CASE("a schedule's own number of stages per rank is used where none is given") {
  for (const std::string& name : schedule_names()) {
    const Schedule s = make_schedule({.name = name, .ranks = 2, .microbatches = 4});
    const bool single =
        name == "gpipe" || name == "1f1b" || name == "zb_h1" || name == "zb_h2" || name == "inference";
    CHECK(s.stages_per_rank == (single ? 1 : 2));
    CHECK(s.name == name);
    CHECK(s.forward_only == (name == "inference"));
  }
}
