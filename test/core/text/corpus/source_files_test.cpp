#include "core/base/source_files.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/config/word.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain;
using pptrain::test::contains_text;

TEST_CASE("files, folders, patterns and lists of them, in order") {
  const ScratchFolder folder;
  for (const char* name : {"b.jsonl", "a.jsonl.gz", "c.jsonl.zst", "d.txt", "e[1].jsonl"})
    folder.write(name, "x");
  std::filesystem::create_directory(folder.path() / "inner.jsonl");
  const std::string here = folder.path().string() + "/";
  const auto names = [&](const std::vector<std::string>& paths) {
    std::string all;
    for (const auto& file : source_files(paths, config::file_endings(config::DataFormat::jsonl)))
      all += file.filename().string() + " ";
    return all;
  };
  CHECK(names({here}) == "a.jsonl.gz b.jsonl c.jsonl.zst e[1].jsonl ");
  CHECK(names({here + "*.jsonl*"}) == "a.jsonl.gz b.jsonl c.jsonl.zst e[1].jsonl ");
  CHECK(names({here + "[b-c].*"}) == "b.jsonl c.jsonl.zst ");
  CHECK(names({here + "d.txt", here + "b.jsonl", here + "d.txt"}) == "d.txt b.jsonl d.txt ");
  CHECK(names({here + "e[1].jsonl"}) == "e[1].jsonl ");  // a file of this name comes before a pattern
  CHECK(names({}).empty());
  CHECK_THROWS_WITH(names({here + "z*"}), contains_text("is a pattern that no file has the name of"));
  CHECK_THROWS_WITH(names({here + "z"}), contains_text("does not exist (a path is relative to"));
  CHECK_THROWS_WITH(
      source_files(std::vector<std::string>{here}, config::file_endings(config::DataFormat::npy)),
      contains_text("is a folder without *.npy files"));
  CHECK_THROWS_WITH(names({"/dev/null"}), contains_text("is a device"));
}

TEST_CASE("a pattern names a folder that cannot be read, and passes over files in a folder's place") {
  const ScratchFolder folder;
  const std::string here = folder.path().string() + "/";
  std::filesystem::create_directory(here + "a");
  folder.write("a/x.txt", "x");
  folder.write("file", "x");
  std::filesystem::create_symlink("file", here + "link");
  const auto files = [&](const std::string& pattern) {
    std::string all;
    for (const auto& file :
         source_files(std::vector{here + pattern}, config::file_endings(config::DataFormat::text)))
      all += file.string().substr(here.size()) + " ";
    return all;
  };
  for (const char* const pattern : {"*/*.txt", "*/x.txt", "[a-z]*/x.tx?"}) {
    INFO(pattern);
    CHECK(files(pattern) == "a/x.txt ");
  }
  std::filesystem::create_symlink("ring", here + "ring");  // root cannot open it either
  for (const char* const pattern : {"*/*.txt", "*/x.txt", "[a-z]*/x.tx?"}) {
    INFO(pattern);
    CHECK_THROWS_WITH(files(pattern),
                      contains_text(here + pattern + "\" is a pattern, but \"" + here + "ring") &&
                          contains_text("cannot be read: Too many levels of symbolic links"));
  }
  CHECK(files("a/*.txt") == "a/x.txt ");
  CHECK_THROWS_WITH(files(std::string(300, 'x') + "/*.txt"),
                    contains_text("cannot be read: File name too long"));
  CHECK_THROWS_WITH(files("nowhere/*.txt"), contains_text("is a pattern that no file has the name of"));
  std::filesystem::remove(here + "ring");
  std::filesystem::create_symlink("lost+found", here + "lost+found");
  CHECK(files("*/*.txt") == "a/x.txt ");
  std::filesystem::remove(here + "lost+found");
  std::filesystem::create_symlink("gone", here + "broken");
  CHECK_THROWS_WITH(files("*/*.txt"), contains_text("broken\" cannot be read: No such file"));
}

TEST_CASE("a folder and a pattern refuse a link to nothing, and pass over hidden files") {
  const ScratchFolder folder;
  folder.write("a.txt", "x");
  folder.write(".hidden.txt", "x");
  const std::string here = folder.path().string() + "/";
  const auto files = [&](const std::string& path) {
    std::string all;
    for (const auto& file : source_files(std::vector{path}, config::file_endings(config::DataFormat::text)))
      all += file.filename().string() + " ";
    return all;
  };
  std::filesystem::create_symlink(here + "a.txt", here + "link.txt");
  CHECK(files(here) == "a.txt link.txt ");
  CHECK(files(here + "*.txt") == "a.txt link.txt ");
  CHECK(files(here + ".hidden.txt") == ".hidden.txt ");  // the path names it, so it is read
  std::filesystem::create_symlink("../gone/b", here + "b.txt");
  for (const std::string& path : {here, here + "*.txt", here + "b.txt"})
    CHECK_THROWS_WITH(files(path), contains_text("b.txt\" is a link to \"../gone/b\", which does not exist"));
  std::filesystem::remove(here + "b.txt");
  REQUIRE(::mkfifo((here + "pipe.txt").c_str(), 0600) == 0);
  for (const std::string& path : {here, here + "*.txt", here + "pipe.txt"})
    CHECK_THROWS_WITH(files(path), contains_text("pipe.txt\" is a pipe; expected a file"));
}
