#include "parallel/checkpoint/folder_writer.h"

#include <cstring>

#include "core/base/error.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::checkpoint;
using pptrain::test::contains_text;

namespace {

const at::Tensor& values() {
  static const at::Tensor tensor = at::arange(15, at::kFloat).view({3, 5});
  return tensor;
}

void write(FolderWriter& writer, const std::string& name) {
  writer.write(name, [](uint64_t begin, std::span<std::byte> piece) {
    std::memcpy(piece.data(), static_cast<const std::byte*>(values().const_data_ptr()) + begin, piece.size());
  });
}

void write_checkpoint(const ScratchFolder& folder) {
  FolderWriter writer(folder.path(), {{"b.weight", at::kFloat, {3, 5}}, {"a.weight", at::kFloat, {3, 5}}});
  write(writer, "a.weight");
  write(writer, "b.weight");
  std::filesystem::create_directories(folder / "hf/deep");
  folder.write("hf/deep/text", "text");
  writer.attach("hf/deep/text");
  writer.finish({.seed = 3}, {{"converted_from", "somewhere"}}, "[run]\nseed = 3\n");
}

}  // namespace

TEST_CASE("a folder of weights alone is a checkpoint, with what is attached to it") {
  const ScratchFolder folder;
  write_checkpoint(folder);
  CHECK(verify(folder.path()).empty());
  const Reader reader(folder.path());
  CHECK(reader.weights_alone());
  CHECK(reader.names(model_file) == std::vector<std::string>{"a.weight", "b.weight"});
  CHECK(reader.state() == RunState{.seed = 3});
  at::Tensor read = at::empty({3, 5});
  reader.read(model_file, "b.weight", read);
  CHECK(read.equal(values()));
  const Manifest manifest = read_manifest(folder.path());
  REQUIRE(manifest.attachments.size() == 1);
  CHECK(manifest.attachments[0].path == "hf/deep/text");
  CHECK(manifest.attachments[0].bytes == 4);
  CHECK(manifest.job_toml == "[run]\nseed = 3\n");
  Manifest of_run = manifest;  // whose optimizer has no state
  of_run.state.step = 4;
  CHECK((manifest.weights_alone() && !of_run.weights_alone()));
}

TEST_CASE("damage to what is attached is found by verify") {
  const ScratchFolder folder;
  write_checkpoint(folder);
  folder.write("hf/deep/text", "test");
  const auto problems = verify(folder.path());
  REQUIRE(problems.size() == 1);
  CHECK_THAT(problems[0], contains_text("hf/deep/text") && contains_text("damaged"));
  std::filesystem::remove(folder / "hf/deep/text");
  CHECK_THAT(verify(folder.path()).at(0), contains_text("hf/deep/text"));
}

TEST_CASE("an attachment lies below its checkpoint") {
  for (const char* path :
       {"", "/etc/passwd", "../text", "hf/../../text", "hf/files//etc/passwd", "hf/./text", "hf/"}) {
    Manifest manifest;
    manifest.attachments = {{.path = path, .bytes = 1, .checksum = "0"}};
    CHECK_THROWS_WITH(parse_manifest(to_text(manifest), "manifest"),
                      contains_text("is not the path of a file"));
  }
}

TEST_CASE("a parameter that was not written is missed") {
  const ScratchFolder folder;
  FolderWriter writer(folder.path(), {{"a.weight", at::kFloat, {3, 5}}, {"b.weight", at::kFloat, {3, 5}}});
  write(writer, "a.weight");
  CHECK_THROWS_WITH(writer.finish({}, {}, ""), contains_text("b.weight"));
}
