#include "parallel/schedule/render/csv.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/error.h"
#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain;
using namespace pptrain::schedule;
using pptrain::test::contains_text;

namespace {

const std::string golden = test::source_dir().string() + "/test/golden/schedules/";

std::string error_of(const std::string& text) {
  try {
    parse_csv(text, "s.csv");
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("the generators' lists are those of PyTorch") {
  struct Case {
    const char* name;
    const char* file;
    int p, v, m;
  };
  const Case cases[] = {
      {"interleaved_1f1b", "interleaved_1f1b_p4_v2_m8", 4, 2, 8},
      {"interleaved_1f1b", "interleaved_1f1b_p4_v2_m10", 4, 2, 10},
      {"interleaved_1f1b", "interleaved_1f1b_p3_v3_m2", 3, 3, 2},
      {"interleaved_zb", "interleaved_zb_p4_v1_m8", 4, 1, 8},
      {"zb_h1", "interleaved_zb_p4_v1_m8", 4, 1, 8},
      {"interleaved_zb", "interleaved_zb_p4_v2_m8", 4, 2, 8},
      {"interleaved_zb", "interleaved_zb_p3_v2_m6", 3, 2, 6},
      {"zbv", "zbv_p4_v2_m8", 4, 2, 8},
      {"zbv", "zbv_p4_v2_m3", 4, 2, 3},
      {"zbv", "zbv_p3_v2_m7", 3, 2, 7},
      {"dualpipe_v", "dualpipe_v_p4_v2_m8", 4, 2, 8},
      {"dualpipe_v", "dualpipe_v_p3_v2_m11", 3, 2, 11},
      {"dualpipe_v", "dualpipe_v_p1_v2_m2", 1, 2, 2},
  };
  for (const Case& c : cases) {
    INFO(c.name << " " << c.file);
    const Schedule file = load_schedule(golden + c.file + ".csv");
    const Schedule made =
        make_schedule({.name = c.name, .ranks = c.p, .microbatches = c.m, .stages_per_rank = c.v});
    CHECK(write_csv(file) == write_csv(made));
    CHECK(file.ranks == c.p);
    CHECK(file.stages_per_rank == c.v);
    CHECK(file.microbatches == c.m);
    if (c.p > 1) CHECK(file.placement == made.placement);
  }
  for (const std::string name : {"gpipe", "1f1b"}) {
    const Schedule file = load_schedule(golden + name + "_p4_v1_m8.csv");
    const Schedule made = add_reduce_grad(make_schedule({.name = name, .ranks = 4, .microbatches = 8}));
    CHECK(write_csv(file) == write_csv(made));
  }
}

TEST_CASE("the shipped schedule files are sound, and are what their names say") {
  const std::string shipped = test::source_dir().string() + "/configs/schedules/";
  for (const std::string name : {"1f1b", "interleaved_1f1b", "zbv", "dualpipe_v"}) {
    const Schedule file = load_schedule(shipped + name + "_p4_m8.csv");
    const Schedule made = make_schedule({.name = name, .ranks = 4, .microbatches = 8});
    CHECK(write_stepped_csv(file) == write_stepped_csv(made));
    CHECK_NOTHROW(lower(file));
  }
  const Schedule with = load_schedule(shipped + "1f1b_p2_m4_with_communication.csv");
  CHECK(write_csv(with) == write_csv(lower(make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 4}))));
}

TEST_CASE("a file of sequence slices is proven as such") {
  const Schedule made = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 3, .sequence_slices = 2});
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "pptrain_slices.csv";
  std::ofstream(path) << write_csv(made);
  CHECK(load_schedule(path, 2).actions == made.actions);
  CHECK_THROWS_WITH(load_schedule(path), contains_text("is unsound"));
  std::filesystem::remove(path);
}

TEST_CASE("PyTorch's text with communication is read and proven") {
  const Schedule file = load_schedule(golden + "interleaved_1f1b_p2_v2_m4_with_communication.csv");
  CHECK(file.has_communication());
  CHECK(file.stages_per_rank == 2);
  CHECK(file.placement == Placement::loop);
  CHECK(lower(file).actions == file.actions);  // it brings everything
}

TEST_CASE("a file whose last rank skips a microbatch is refused, with the grid") {
  // PyTorch 2.11's list for the last rank of 1F1B begins with microbatch 1.
  try {
    load_schedule(golden + "pytorch_1f1b_p4_m8_unsound.csv");
    FAIL("accepted");
  } catch (const UsageError& error) {
    CHECK_THAT(error.what(), contains_text("rank 3") && contains_text(">"));
  }
}

TEST_CASE("a file may begin with a byte order mark") {
  CHECK(parse_csv("\xEF\xBB\xBF"
                  "0F0,0B0\n")
            .actions == parse_csv("0F0,0B0\n").actions);
}

TEST_CASE("cells may be in quotation marks, as spreadsheets write them") {
  CHECK(parse_csv("\"0F0\",\"0B0\"\n").actions == parse_csv("0F0,0B0\n").actions);
}

TEST_CASE("schedules survive writing and reading") {
  const Schedule made = lower(make_schedule({.name = "1f1b", .ranks = 3, .microbatches = 5}));
  CHECK(parse_csv(write_csv(made)).actions == made.actions);
  const Schedule plain = make_schedule({.name = "1f1b", .ranks = 3, .microbatches = 5});
  CHECK(write_stepped_csv(plain) ==
        "0F0,0F1,0F2,,,0B0,0F3,0B1,0F4,0B2,,0B3,,0B4\n"
        ",1F0,1F1,,1B0,1F2,1B1,1F3,1B2,1F4,1B3,,1B4\n"
        ",,2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3,2F4,2B4\n");
  CHECK(parse_csv(write_stepped_csv(plain)).actions == plain.actions);
  CHECK_THROWS_AS(write_stepped_csv(made), Error);
}

TEST_CASE("placement and sizes follow from the text") {
  const Schedule v = parse_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n");
  CHECK(v.placement == Placement::v);
  CHECK(v.stages_per_rank == 2);
  CHECK_NOTHROW(validate(v));
  const Schedule loop = parse_csv("0F0,2F0\n1F0,3F0\n\n");
  CHECK(loop.placement == Placement::loop);
  CHECK(loop.forward_only);
  CHECK_NOTHROW(validate(loop));
}

TEST_CASE("errors in the text say the row and the column") {
  CHECK_THAT(error_of("0F0,0B0\n1F0,1X0\n"), contains_text("s.csv:2:2:") && contains_text("1X0"));
  CHECK_THAT(error_of("0F0,,0F\n"), contains_text("s.csv:1:3:"));
  CHECK_THAT(error_of("0F0,0B0\n1F0,0F1\n"), contains_text("s.csv:2:2: stage 0 is in row 1 already"));
  CHECK_THAT(error_of(""), contains_text("no action"));
  CHECK_THAT(error_of("0F0\n2F0\n"), contains_text("stage 1 has no action"));
  CHECK_THAT(error_of("0F0\n1F0\n,\n2F0\n"), contains_text("s.csv:3:1:"));
  CHECK_THAT(error_of("0F0,1F0\n2F0\n"), contains_text("3 stages do not divide over 2 ranks"));
  CHECK_THAT(error_of("0F0,1F0\n2F0,3F0\n"), contains_text("neither in a loop"));
  CHECK_THAT(error_of("0F9999999\n"), contains_text("s.csv:1:1:"));
  CHECK_THAT(error_of("0F1000000,0B1000000\n"), contains_text("many more than the file's 2 actions"));
  CHECK_THROWS_WITH(load_schedule("/nowhere/s.csv"), contains_text("/nowhere/s.csv"));
}
