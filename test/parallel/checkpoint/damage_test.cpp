#include <algorithm>
#include <cstring>
#include <random>

#include "core/base/error.h"
#include "core/io/safetensors.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"
#include "test/parallel/checkpoint/example.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using namespace pptrain::test;

namespace fs = std::filesystem;

namespace {

constexpr const char* damaged_file = "step_2/stage_1/model.safetensors";

struct Found {
  std::optional<fs::path> path;
  std::vector<std::string> reports;
};

// Finds a checkpoint as a resumed run does: loads what it finds, and passes it over if that fails.
Found find(const fs::path& root) {
  Found found;
  KnownProblems known;
  const auto report = [&](const std::string& text) { found.reports.push_back(text); };
  for (;;) {
    found.path = find_resumable(root, report, known);
    if (!found.path) return found;
    std::string problem;
    comm::run_thread_ranks(2, [&](comm::Communicator& world) {
      const auto load = [&](const Reader& reader) { reader.read_shared(world, {}); };
      const std::string text = load_on_all(world, *found.path, load);
      if (world.rank() == 0) problem = text;
    });
    if (problem.empty()) return found;
    known[*found.path] = problem;
    report("the checkpoint '" + found.path->string() + "' is passed over: " + problem);
  }
}

// Saves steps 1 and 2 and damages step 2. verify must name `what`; a resumed run must take step 1 and say
// why.
void check_refused(const std::string& what, const std::function<void(const ScratchFolder&)>& damage,
                   bool found_when_opened = true) {
  const ScratchFolder folder;
  save_example(folder.path(), 1);
  save_example(folder.path(), 2);
  damage(folder);
  INFO(what);
  const auto problems = verify(folder / "step_2");
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], contains_text(what));
  const Found found = find(folder.path());
  CHECK(found.path == folder / "step_1");
  REQUIRE(found.reports.size() == 1);
  CHECK_THAT(found.reports[0], contains_text("step_2' is passed over") && contains_text(what));
  if (found_when_opened) {
    CHECK_THROWS_WITH(Reader(folder / "step_2"), contains_text(what));
  } else {
    CHECK_THROWS_WITH(reads_back(Reader(folder / "step_2"), 2), contains_text(what));
  }
}

// Writes the model file of stage 1 anew with changed tensors. The manifest's size for it is kept or updated.
void rewrite_model(const ScratchFolder& folder,
                   const std::function<void(std::vector<io::TensorSpec>&)>& change) {
  const fs::path path = folder / damaged_file;
  std::vector<io::TensorSpec> specs = io::SafetensorsReader(path).tensors();
  const auto size = fs::file_size(path);
  std::vector<at::Tensor> bytes;
  for (const auto& spec : specs) bytes.push_back(io::SafetensorsReader(path).view(spec.name));
  change(specs);
  fs::remove(path);
  io::SafetensorsWriter writer(path, specs);
  for (size_t i = 0; i < specs.size(); ++i) {
    writer.write(specs[i].name, bytes[i].view(specs[i].dtype).view(specs[i].shape));
  }
  writer.finish();
  REQUIRE(fs::file_size(path) == size);  // otherwise the size alone would show it
}

}  // namespace

TEST_CASE("damage to a file is refused by name") {
  check_refused("stage_1/model.safetensors' has ", [](const ScratchFolder& folder) {
    fs::resize_file(folder / damaged_file, fs::file_size(folder / damaged_file) - 1);
  });
  check_refused("stage_1/model.safetensors' has ", [](const ScratchFolder& folder) {
    overwrite(folder / damaged_file, [](std::string& bytes) { bytes += '\0'; });
  });
  check_refused("stage_1/model.safetensors",
                [](const ScratchFolder& folder) { fs::remove(folder / damaged_file); });
  check_refused("stage_1/model.safetensors': header", [](const ScratchFolder& folder) {
    overwrite(folder / damaged_file, [](std::string& bytes) { bytes[8 + 2] = '\xff'; });
  });
  check_refused(
      "stage_1/model.safetensors': the tensor 'layers.5.norm.weight' is damaged",
      [](const ScratchFolder& folder) {
        overwrite(folder / damaged_file, [](std::string& bytes) { bytes.back() ^= 4; });
      },
      /*found_when_opened=*/false);
}

TEST_CASE("a sound file that is not the one saved is refused") {
  check_refused("the tensor 'layers.3.norm.weight' is F32 [5, 1], but the manifest says F32 [1, 5]",
                [](const ScratchFolder& folder) {
                  rewrite_model(folder, [](auto& specs) {
                    for (auto& spec : specs) {
                      if (spec.name == "layers.3.norm.weight") spec.shape = {5, 1};
                    }
                  });
                });
  const auto with_problems = [](const std::function<void(std::vector<io::TensorSpec>&)>& change) {
    const ScratchFolder folder;
    save_example(folder.path(), 2);
    rewrite_model(folder, change);
    auto problems = verify(folder / "step_2");
    CHECK_THROWS_AS(Reader(folder / "step_2"), Error);
    std::string text;
    for (const std::string& problem : problems) text += problem + "\n";
    return text;
  };
  CHECK_THAT(with_problems([](auto& specs) {
               for (auto& spec : specs) {
                 if (spec.name == "layers.3.norm.weight") spec.name = "layers.9.norm.weight";
               }
             }),
             contains_text("the tensor 'layers.3.norm.weight' is missing") &&
                 contains_text("the tensor 'layers.9.norm.weight' is not in the manifest"));
  CHECK_THAT(with_problems([](auto& specs) {
               for (auto& spec : specs) {
                 if (spec.name == "layers.3.norm.weight") spec.dtype = at::kInt;
               }
             }),
             contains_text("is I32 [1, 5], but the manifest says F32 [1, 5]"));
}

TEST_CASE("a manifest that is missing, cut or changed is refused") {
  const auto manifest = [](const ScratchFolder& folder) { return folder / "step_2/manifest.json"; };
  check_refused("manifest.json", [&](const auto& folder) { fs::remove(manifest(folder)); });
  check_refused("manifest.json",
                [&](const auto& folder) { ScratchFolder::write_file(manifest(folder), ""); });
  check_refused("manifest.json",
                [&](const auto& folder) { ScratchFolder::write_file(manifest(folder), "garbage"); });
  check_refused("not the manifest",
                [&](const auto& folder) { ScratchFolder::write_file(manifest(folder), "[1]"); });
  check_refused("not the manifest",
                [&](const auto& folder) { ScratchFolder::write_file(manifest(folder), "{}"); });
  check_refused("manifest.json", [&](const auto& folder) {
    overwrite(manifest(folder), [](std::string& text) { text.resize(text.size() / 2); });
  });
  check_refused("its checksum is wrong", [&](const auto& folder) {
    overwrite(manifest(folder), [](std::string& text) {
      text.replace(text.find("\"next_sample\": 24"), 17, "\"next_sample\": 25");
    });
  });
  check_refused("version 3 of the format; this program reads versions 1 to 2", [&](const auto& folder) {
    overwrite(manifest(folder),
              [](std::string& text) { text.replace(text.find("\"version\": 2"), 12, "\"version\": 3"); });
  });
}

TEST_CASE("what is behind a manifest's end, or no integer where one belongs, is refused") {
  const std::string file =
      R"([{"stage": 0, "file": "model", "bytes": 100, "tensors": {"w": {"dtype": "F32", "shape": [2], "xxh3_128": ""}}}])";
  const auto refused = [](const std::string& text, const std::string& why) {
    INFO(text);
    CHECK_THROWS_WITH(parse_files(text), contains_text(why));
  };
  CHECK(parse_files(file).size() == 1);
  refused(file + std::string("\0", 1), "is NUL");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = file;
    return changed.replace(changed.find(from), from.size(), to);
  };
  refused(with("\"stage\": 0", "\"stage\": 0.5"), "'stage': 0.5 is not an integer from 0 to 2147483647");
  refused(with("\"stage\": 0", "\"stage\": 4294967296"), "'stage': 4294967296 is not an integer");
  refused(with("\"stage\": 0", "\"stage\": true"), "'stage': true is not an integer");
  refused(with("100", "-100"), "'bytes': -100 is not an integer from 0");
  refused(with("[2]", "[2.5]"), "'shape': 2.5 is not an integer");
  refused(with("[2]", "[1e300]"), "is not an integer");
  refused(with("[2]", "2"), "a rank's list of files");
  refused(with("\"model\"", "\"model\\u0000x\""), "cannot be the name of a file");
  refused("{}", "a rank's list of files");
  const auto part = [&](const std::string& numbers) { return with("\"model\"", "\"model\", " + numbers); };
  CHECK(parse_files(part("\"part\": 2, \"parts\": 2"))[0].path() ==
        "stage_0/model.00002-of-00002.safetensors");
  refused(part("\"part\": 0, \"parts\": 2"), "part -1 of 2 parts");
  refused(part("\"part\": 3, \"parts\": 2"), "part 2 of 2 parts");
  refused(part("\"part\": 4294967297, \"parts\": 2"), "part 99999 of 2 parts");
  refused(part("\"part\": 1, \"parts\": 4294967297"), "part 0 of 100000 parts");
}

// A change of any character except white space must be found, and no change may crash.
TEST_CASE("no flipped bit of a manifest passes") {
  const ScratchFolder folder;
  save_example(folder.path(), 1, 1);
  const fs::path path = folder / "step_1/manifest.json";
  const std::string good = ScratchFolder::read_file(path);
  const Reader reader(folder / "step_1");
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    std::string bad = good;
    const size_t at = random() % bad.size();
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    if (std::isspace(static_cast<unsigned char>(good[at])) != 0) continue;
    ScratchFolder::write_file(path, bad);
    INFO("byte " << at);
    REQUIRE(verify(folder / "step_1").size() == 1);
  }
}

TEST_CASE("a resumed run finds the newest sound checkpoint and says what it passed over") {
  const ScratchFolder folder;
  CHECK_FALSE(find(folder / "nothing").path);
  CHECK_FALSE(find(folder.path()).path);
  for (const int64_t step : {8, 9, 10, 11}) save_example(folder.path(), step, 1);

  SECTION("latest is for people, whatever it says") {
    for (const char* text :
         {"step_9\n", "step_12\n", "", "../step_9\n", "step_9x", "\xff\xfe", "step_9\n\n"}) {
      folder.write("latest", text);
      const Found found = find(folder.path());
      CHECK(found.path == folder / "step_11");
      CHECK(found.reports.empty());
    }
  }
  SECTION("numbers are compared as numbers") {
    fs::remove(folder / "latest");
    CHECK(find(folder.path()).path == folder / "step_11");
    fs::remove_all(folder / "step_11");
    CHECK(find(folder.path()).path == folder / "step_10");
    fs::remove_all(folder / "step_10");
    CHECK(find(folder.path()).path == folder / "step_9");
  }
  SECTION("all but one are damaged") {
    for (const char* step : {"step_9", "step_10", "step_11"}) fs::remove_all(folder / step / "stage_0");
    const Found found = find(folder.path());
    CHECK(found.path == folder / "step_8");
    REQUIRE(found.reports.size() == 3);
    CHECK_THAT(found.reports[0], contains_text("step_11"));
    CHECK_THAT(found.reports[1], contains_text("step_10"));
    CHECK_THAT(found.reports[2], contains_text("step_9"));
  }
  SECTION("one that its run removes while it is read is gone, not damaged") {
    const Reader reader(folder / "step_11");
    fs::remove_all(folder / "step_11");
    const std::string name = reader.names("model").front();
    const at::Tensor values = at::empty(reader.global_shape("model", name), at::kFloat);
    const std::string gone = "step_11' is gone: a run that goes on removes its old checkpoints";
    CHECK_THROWS_WITH(reader.read("model", name, values), contains_text(gone));
    CHECK(find(folder.path()).path == folder / "step_10");
    CHECK(find(folder.path()).reports.empty());
  }
  SECTION("none is sound") {
    for (const char* step : {"step_8", "step_9", "step_10", "step_11"})
      fs::remove(folder / step / "manifest.json");
    CHECK_THROWS_WITH(find(folder.path()), contains_text("none of the checkpoints") &&
                                               contains_text("step_8: ") && contains_text("step_11: ") &&
                                               contains_text("manifest.json"));
  }
  SECTION("what a killed run left is no checkpoint, and leaves with the next save") {
    fs::rename(folder / "step_11", folder / ".tmp_step_11");
    folder.write("latest", "step_10\n");
    const Found found = find(folder.path());
    CHECK(found.path == folder / "step_10");
    CHECK(found.reports.empty());
    save_example(folder.path(), 12, 1);
    CHECK(entries(folder.path()) ==
          std::set<std::string>{"latest", "step_8", "step_9", "step_10", "step_12"});
  }
}

namespace {

// Where the data of a safetensors file begin.
uint64_t data_begin(const std::string& file) {
  uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  return sizeof(header) + header;
}

}  // namespace

// Flips a bit in any file: verify names the tensor or the file. Every fifth time a resumed run must name it
// too and go on from the step before.
TEST_CASE("a flipped bit at any of 1,000 places is found") {
  const ScratchFolder folder;
  save_example(folder.path(), 1);
  save_example(folder.path(), 2);
  std::vector<fs::path> files;
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "step_2")) {
    if (!entry.is_regular_file()) continue;
    files.push_back(entry.path());
    bytes += entry.file_size();
  }
  std::mt19937_64 random(11);
  int tensors_hit = 0;
  for (int round = 0; round < 1000; ++round) {
    uint64_t at = random() % bytes;
    auto file = files.begin();
    for (; at >= fs::file_size(*file); ++file) at -= fs::file_size(*file);
    const std::string good = ScratchFolder::read_file(*file);
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << random() % 8));
    ScratchFolder::write_file(*file, bad);
    INFO(file->string() << " byte " << at);
    const auto problems = verify(folder / "step_2");
    REQUIRE_FALSE(problems.empty());
    const std::string name = file->filename().string();
    const bool in_data = name.ends_with(".safetensors") && at >= data_begin(good);
    const auto names_it = [&](const std::string& text) {
      REQUIRE_THAT(text, contains_text(name));
      if (in_data) REQUIRE_THAT(text, contains_text("the tensor 'layers.") && contains_text("damaged"));
    };
    names_it(problems[0]);
    tensors_hit += in_data ? 1 : 0;
    if (round % 5 == 0) {
      const Found found = find(folder.path());
      REQUIRE(found.path == folder / "step_1");
      REQUIRE(found.reports.size() == 1);
      names_it(found.reports[0]);
    }
    ScratchFolder::write_file(*file, good);
  }
  CHECK(tensors_hit > 50);
}

TEST_CASE("a folder that cannot be listed is no new run") {
  const ScratchFolder folder;
  fs::create_symlink(folder / "itself", folder / "itself");  // ELOOP, as EIO or EACCES
  CHECK_THROWS_WITH(find_resumable(folder / "itself", {}), contains_text("cannot list the checkpoints in"));
  CHECK_THROWS_WITH(list_step_folders(folder / "itself"), contains_text("symbolic links"));
}
