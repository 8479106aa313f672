// The parts of a conversion that need no Hugging Face directory.
#include <c10/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "app/convert/element_types.h"
#include "app/convert/hf_companions.h"
#include "app/convert/target_folder.h"
#include "core/base/error.h"
#include "parallel/checkpoint/step_folders.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::app;
using pptrain::test::contains_text;
namespace fs = std::filesystem;

namespace {

using Shards = std::vector<std::vector<size_t>>;

Shards plan(const std::vector<uint64_t>& bytes, uint64_t max) {
  return plan_shards(bytes, max);
}

void write(const fs::path& path, const std::string& text = "x") {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

std::span<const std::byte> bytes_of(const std::vector<uint16_t>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

TEST_CASE("a file of weights takes what comes until it would be too large") {
  CHECK(plan({}, 10) == Shards{{}});
  CHECK(plan({4, 6}, 10) == Shards{{0, 1}});
  CHECK(plan({4, 7, 3, 1}, 10) == Shards{{0}, {1, 2}, {3}});
  CHECK(plan({11, 4, 20, 1, 9}, 10) == Shards{{0}, {1}, {2}, {3, 4}});
  CHECK(plan({~uint64_t{0} / 2, ~uint64_t{0} / 2, 5}, ~uint64_t{0}) == Shards{{0, 1}, {2}});
}

TEST_CASE("files of weights have transformers' names") {
  CHECK(shard_name(0, 1) == "model.safetensors");
  CHECK(shard_name(2, 12) == "model-00003-of-00012.safetensors");
  for (const char* name : {"model.safetensors", "model-00003-of-00012.safetensors"})
    CHECK(is_shard_name(name));
  for (const char* name : {"model", "model.safetensors.index.json", "adamw.safetensors", "my.safetensors",
                           "model-best.safetensors", "model00001.safetensors"}) {
    INFO(name);
    CHECK_FALSE(is_shard_name(name));
  }
  CHECK(index_text({{"b", "f2"}, {"a", "f1"}}, 12) ==
        "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n    \"a\": \"f1\",\n    "
        "\"b\": "
        "\"f2\"\n  }\n}\n");
}

TEST_CASE("every number of 16 bits comes back from float32") {
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const uint16_t infinity = type == at::kHalf ? 0x7C00 : 0x7F80;
    std::vector<uint16_t> all;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      if ((bits & 0x7FFF) <= infinity) all.push_back(static_cast<uint16_t>(bits));
    }
    std::vector<float> floats(all.size());
    to_float(type, bytes_of(all), std::as_writable_bytes(std::span(floats)), "x");
    std::vector<uint16_t> back(all.size());
    to_type(type, floats, std::as_writable_bytes(std::span(back)), "x");
    CHECK(back == all);
    CHECK(floats[0x3F8] > 0);
  }
}

TEST_CASE("what float32 would change is refused by name") {
  float value = 0;
  const std::span<std::byte> to = std::as_writable_bytes(std::span(&value, 1));
  CHECK_THROWS_WITH(to_float(at::kBFloat16, bytes_of({0xFFA1}), to, "'f': 't'"),
                    contains_text("'f': 't' holds"));
  const std::array<float, 2> large = {1, 1e6F};
  std::vector<uint16_t> half(2);
  CHECK_THROWS_WITH(to_type(at::kHalf, large, std::as_writable_bytes(std::span(half)), "'f': 't'"),
                    contains_text("'f': 't' holds values beyond the range of F16"));
}

TEST_CASE("what lies beside the weights is listed with what stays behind") {
  const ScratchFolder folder;
  const fs::path root = folder / "hf", elsewhere = folder / "elsewhere";
  for (const char* name : {"config.json", "model.safetensors", "a/b.txt", ".gitattributes", ".git/HEAD"})
    write(root / name);
  write(root / "large.bin", std::string(11, 'x'));
  write(elsewhere / "c.txt");
  fs::create_symlink(elsewhere, root / "linked");
  fs::create_symlink(elsewhere / "c.txt", root / "c.txt");
  fs::create_symlink(elsewhere / "none", root / "dangling");
  fs::create_symlink("a/b.txt", root / "inside.txt");
  std::vector<std::string> left_out;
  CHECK(list_other_files(root, {"model.safetensors"}, left_out, 10) ==
        std::vector<fs::path>{".gitattributes", "a/b.txt", "config.json", "inside.txt"});
  REQUIRE(left_out.size() == 5);
  CHECK_THAT(left_out[0], contains_text(".git: a hidden folder"));
  CHECK_THAT(left_out[1], contains_text("c.txt: a link out of the directory"));
  CHECK_THAT(left_out[2], contains_text("dangling: "));
  CHECK_THAT(left_out[3], contains_text("large.bin: "));
  CHECK_THAT(left_out[4], contains_text("linked: a linked folder"));
}

TEST_CASE("a snapshot of the Hub's cache may link to the blobs beside it") {
  const ScratchFolder folder;
  const fs::path root = folder / "models--a/snapshots/main", blobs = folder / "models--a/blobs";
  write(root / "config.json");
  write(blobs / "1234");
  write(folder / "secret");
  fs::create_symlink("../../blobs/1234", root / "linked.txt");
  fs::create_symlink("../../../secret", root / "secret.txt");
  std::vector<std::string> left_out;
  CHECK(list_other_files(root, {}, left_out, 10) == std::vector<fs::path>{"config.json", "linked.txt"});
}

TEST_CASE("a folder that was not published leaves nothing behind") {
  const ScratchFolder folder;
  const fs::path target = folder / "new/out/";
  {
    const TargetFolder unfinished(target, false, {});
    write(unfinished.folder() / "config.json");
    CHECK(unfinished.folder().parent_path() == fs::canonical(folder / "new"));
  }
  CHECK(fs::is_empty(folder / "new"));
  TargetFolder done(target, false, {});
  // A run that starts there removes what killed processes left, and another conversion may go there too.
  write(done.folder() / "kept.txt");
  checkpoint::remove_temporaries(folder / "new");
  const TargetFolder other(target, false, {});
  CHECK(fs::exists(done.folder() / "kept.txt"));
  write(done.folder() / "a/b.txt");
  done.publish();
  CHECK(fs::exists(folder / "new/out/a/b.txt"));
  CHECK(std::distance(fs::directory_iterator(folder / "new"), fs::directory_iterator()) == 2);
}

TEST_CASE("a folder may be named by one word that nothing has yet") {
  const ScratchFolder folder;
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  CHECK(real_path("out") == fs::canonical(folder.path()) / "out");
  {
    TargetFolder target("out", false, {});
    write(target.folder() / "config.json");
    target.publish();
  }
  fs::current_path(before);
  CHECK(fs::exists(folder / "out/config.json"));
}

TEST_CASE("a folder takes an earlier one's place, and no other's") {
  const ScratchFolder folder;
  const fs::path target = folder / "out";
  write(target / "config.json", "old");
  write(target / "notes/mine.txt");
  CHECK_THROWS_WITH(TargetFolder(target, false, {}), contains_text("is there already"));
  CHECK_THROWS_WITH(TargetFolder(target, true, {}), contains_text("notes/mine.txt"));
  TargetFolder next(target, true, {"notes/mine.txt"});
  write(next.folder() / "config.json", "new");
  CHECK(fs::file_size(target / "config.json") == 3);
  write(target / "late.txt");
  CHECK_THROWS_AS(next.publish(), UsageError);
  fs::remove(target / "late.txt");
  next.publish();
  CHECK_FALSE(fs::exists(target / "notes"));
}
