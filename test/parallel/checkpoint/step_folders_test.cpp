// The names in a folder of checkpoints.
#include "parallel/checkpoint/step_folders.h"

#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain::checkpoint;

TEST_CASE("a step has one name") {
  for (const int64_t step : {int64_t{0}, int64_t{7}, int64_t{200}, INT64_MAX}) {
    CHECK(parse_step_folder(step_folder_name(step)) == step);
  }
  CHECK(step_folder_name(200) == "step_200");
  for (const char* name : {"", "step", "step_", "step_007", "step_-1", "step_+1", "step_1x", "step_best",
                           "step_1 ", " step_1", ".tmp_step_1", "Step_1", "step_9223372036854775808"}) {
    INFO(name);
    CHECK_FALSE(parse_step_folder(name));
  }
}

TEST_CASE("folders of steps are listed by number") {
  const ScratchFolder folder;
  for (const char* name : {"step_1000", "step_200", "step_30", "step_007", "step_best", ".tmp_step_5"}) {
    std::filesystem::create_directory(folder / name);
  }
  folder.write("step_40", "a file");
  std::vector<int64_t> steps;
  for (const auto& [step, path] : list_step_folders(folder.path())) {
    CHECK(path == folder / step_folder_name(step));
    steps.push_back(step);
  }
  CHECK(steps == std::vector<int64_t>{1000, 200, 30});
  CHECK(list_step_folders(folder / "absent").empty());
}

TEST_CASE("a step's folder that waited to be replaced is taken back where nothing came in its place") {
  const ScratchFolder folder;
  for (const char* name : {"step_4.1.replaced", "step_6.2.replaced", "step_6", "notes.1.replaced"}) {
    std::filesystem::create_directory(folder / name);
  }
  std::vector<std::string> reports;
  const auto report = [&](const std::string& text) { reports.push_back(text); };
  take_back_replaced(folder.path(), report);
  CHECK(reports.size() == 1);
  CHECK(std::filesystem::is_directory(folder / "step_4"));
  CHECK_FALSE(std::filesystem::exists(folder / "step_4.1.replaced"));
  CHECK(std::filesystem::exists(folder / "step_6.2.replaced"));
  CHECK(std::filesystem::exists(folder / "notes.1.replaced"));
  take_back_replaced(folder / "absent", report);
  CHECK(reports.size() == 1);
}
