#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/io/atomic_file.h"
#include "core/io/checksum.h"
#include "core/io/files.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/io/strict_json.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::io;
using pptrain::test::contains_text;

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::set<std::string> entries(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("a mapped file shows the file's bytes") {
  const ScratchFolder folder;
  MappedFile first(folder.write("a", "hello"));
  CHECK(text_of(first) == "hello");
  MappedFile moved(std::move(first));
  CHECK(text_of(moved) == "hello");
  MappedFile other(folder.write("b", ""));
  CHECK(other.bytes().empty());
  other = std::move(moved);
  CHECK(text_of(other) == "hello");
  CHECK_THROWS_WITH(MappedFile(folder / "absent"), contains_text("absent") && contains_text("No such file"));
  CHECK_THROWS_WITH(MappedFile(folder.path()), contains_text("not a regular file"));
}

TEST_CASE("a path that a file gives stays inside the file's folder") {
  const ScratchFolder folder;
  for (const char* path : {"a", "a/b.txt", "..a/b..", ".hidden/a b"}) {
    INFO(path);
    CHECK(is_inner_path(path));
  }
  for (const std::string path : {"", "/", "/etc/passwd", "a//etc/passwd", "a/", "..", "a/../b", "./a"}) {
    INFO(path);
    CHECK_FALSE(is_inner_path(path));
    CHECK_THROWS_WITH(inner_path(folder.path(), path), contains_text("is not the path of a file inside"));
  }
  CHECK_FALSE(is_inner_path(std::string_view("a\0b", 3)));
  const ScratchFolder elsewhere;
  elsewhere.write("secret", "x");
  std::filesystem::create_symlink(elsewhere / "secret", folder / "link");
  std::filesystem::create_directory_symlink(elsewhere.path(), folder / "linked");
  for (const char* path : {"link", "linked/secret", "linked/new"}) {
    INFO(path);
    CHECK_THROWS_WITH(inner_path(folder.path(), path), contains_text("leads out of"));
  }
  folder.write("own", "x");
  std::filesystem::create_symlink("own", folder / "inner");
  CHECK(inner_path(folder.path(), "inner") == folder / "inner");
  CHECK(inner_path(folder.path(), "new/file") == folder / "new/file");
}

TEST_CASE("output goes through a device or a pipe, which stays what it is") {
  const ScratchFolder folder;
  const std::filesystem::path pipe = folder / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  const FileDescriptor reader = open_file(pipe, O_RDONLY | O_NONBLOCK);
  write_output(pipe, "some text");
  std::string got(9, '\0');
  REQUIRE(::read(reader.get(), got.data(), got.size()) == 9);
  CHECK(got == "some text");
  CHECK(std::filesystem::is_fifo(pipe));
  write_output("/dev/null", "lost");
  CHECK(std::filesystem::is_character_file("/dev/null"));
  write_output(folder / "file", "kept");
  CHECK(ScratchFolder::read_file(folder / "file") == "kept");
}

TEST_CASE("output goes where a link leads, and on into an open file that /dev names") {
  const ScratchFolder folder;
  write_output(folder / "file", "old");
  std::filesystem::create_symlink("file", folder / "link");
  write_output(folder / "link", "new");
  CHECK(std::filesystem::is_symlink(folder / "link"));
  CHECK(ScratchFolder::read_file(folder / "file") == "new");
  const FileDescriptor file = open_file(folder / "file", O_WRONLY | O_APPEND);
  for (const char* place : {"/dev/fd/", "/proc/self/fd/"})
    write_output(place + std::to_string(file.get()), "er");
  CHECK(ScratchFolder::read_file(folder / "file") == "newerer");
}

TEST_CASE("a file of the program's own is opened through no link, and no pipe is waited for") {
  const ScratchFolder folder;
  folder.write("victim", "text");
  std::filesystem::create_symlink(folder / "victim", folder / "lock");
  CHECK_THROWS_WITH(open_own_file(folder / "lock", O_RDWR | O_CREAT), contains_text("lock"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(open_own_file(folder / "pipe", O_RDWR), contains_text("not a regular file"));
  CHECK_NOTHROW(open_own_file(folder / "new", O_WRONLY | O_CREAT));
  CHECK(ScratchFolder::read_file(folder / "victim") == "text");
}

TEST_CASE("no text from outside acts on a terminal") {
  CHECK(printable("step 3:\tdone\n") == "step 3:\tdone\n");
  CHECK(printable("na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x99\x82") ==
        "na\xC3\xAFve \xE2\x82\xAC \xF0\x9F\x99\x82");
  CHECK(printable("\x1b]0;title\x07\r\x7f") == "?]0;title???");
  CHECK(printable("\xC2\x9B"
                  "2J") == "?2J");  // CSI as one character
  CHECK(printable("\x9B"
                  "2J \xE2\x82") == "?2J ??");
}

TEST_CASE("temporary names differ from call to call, and between spaces of process ids") {
  CHECK(unique_suffix() != unique_suffix());
  CHECK(unique_suffix().starts_with(process_space() + "." + std::to_string(::getpid()) + "."));
  CHECK(process_space().size() == 16);
}

TEST_CASE("an output file appends, writes at offsets and refuses what is there") {
  const ScratchFolder folder;
  OutputFile file(folder / "a");
  file.write(bytes_of("abc"));
  file.write_at(6, bytes_of("xyz"));
  file.write(bytes_of("def"));
  file.sync_and_close();
  CHECK(ScratchFolder::read_file(folder / "a") == "abcdefxyz");
  CHECK_THROWS_WITH(OutputFile(folder / "a"), contains_text("File exists"));
  CHECK_THROWS_WITH(OutputFile(folder / "no/such/folder"), contains_text("No such file or directory"));
}

TEST_CASE("an atomic write replaces the whole file or nothing") {
  const ScratchFolder folder;
  write_file_atomically(folder / "latest", "one\n");
  write_file_atomically(folder / "latest", "two\n");
  CHECK(ScratchFolder::read_file(folder / "latest") == "two\n");
  CHECK(entries(folder.path()) == std::set<std::string>{"latest"});
  CHECK_THROWS_WITH(write_file_atomically(folder / "none" / "x", "1"), contains_text("none"));
  // A folder is in the way: the rename fails and leaves nothing behind.
  std::filesystem::create_directories(folder / "busy" / "inside");
  CHECK_THROWS_WITH(write_file_atomically(folder / "busy", "1"), contains_text("busy"));
  CHECK(entries(folder.path()) == std::set<std::string>{"busy", "latest"});
}

TEST_CASE("renaming a folder over another one exchanges them") {
  const ScratchFolder folder;
  std::filesystem::create_directories(folder / "new");
  folder.write("new/file", "new");
  CHECK_FALSE(rename_folder_synced(folder / "new", folder / "target"));
  CHECK(entries(folder.path()) == std::set<std::string>{"target"});
  std::filesystem::create_directories(folder / "newer");
  folder.write("newer/file", "newer");
  CHECK(rename_folder_synced(folder / "newer", folder / "target"));
  CHECK(ScratchFolder::read_file(folder / "target/file") == "newer");
  CHECK(ScratchFolder::read_file(folder / "newer/file") == "new");
  CHECK_THROWS_AS(rename_folder_synced(folder / "absent", folder / "elsewhere"), Error);
}

// Values as published for `xxh128sum`.
TEST_CASE("checksums are XXH3-128") {
  CHECK(checksum_hex({}) == "99aa06d3014798d86001c324468d497f");
  CHECK(checksum_hex(bytes_of("a")) == "a96faf705af16834e6c632b61e964e1f");
  const std::string text(300, 'a');
  Checksum pieces;
  for (size_t i = 0; i < text.size(); i += 7)
    pieces.add(bytes_of(text).subspan(i, std::min<size_t>(7, text.size() - i)));
  CHECK(pieces.hex() == checksum_hex(bytes_of(text)));
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    std::string flipped = text;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    REQUIRE(checksum_hex(bytes_of(flipped)) != pieces.hex());
  }
}

TEST_CASE("JSON with a repeated key, at any depth, is refused") {
  CHECK(parse_strict_json(R"({"a": {"b": 1}, "b": [{"b": 2}, {"b": 3}]})", "f")["b"][1]["b"] == 3);
  CHECK_THROWS_WITH(parse_strict_json(R"({"a": 1, "a": 1})", "file"),
                    contains_text("file: the key 'a' is there twice"));
  CHECK_THROWS_WITH(parse_strict_json(R"({"x": [{"k": 1, "j": {}, "k": 2}]})", "file"), contains_text("'k'"));
  CHECK_THROWS_WITH(parse_strict_json(R"({"\u0061": 1, "a": 1})", "file"), contains_text("'a'"));
  CHECK_THROWS_WITH(parse_strict_json("{", "file"), contains_text("file: not valid JSON"));
  CHECK_THROWS_WITH(parse_strict_json("", "file"), contains_text("file: not valid JSON"));
  CHECK_THROWS_WITH(parse_strict_json("{} x", "file"),
                    contains_text("file: not valid JSON at byte 4, near 'x'"));
  CHECK_THROWS_WITH(parse_strict_json("not json", "file"),
                    contains_text("file: not valid JSON at byte 2, near 'ot json'"));
  CHECK_THROWS_WITH(parse_strict_json(std::string(100000, '['), "file"), contains_text("nested deeper"));
}

TEST_CASE("JSON ends where its text does: a NUL byte or a byte order mark is refused") {
  for (const std::string& text : {std::string("{}\0", 3), std::string("{}\0{\"a\": 1}", 11),
                                  std::string("\0{}", 3), std::string("{\"a\0\": 1}", 9)}) {
    CHECK_THROWS_WITH(parse_strict_json(text, "file"), contains_text("file: not valid JSON: byte "));
  }
  CHECK_THROWS_WITH(parse_strict_json(std::string("{}  \0", 5), "file"), contains_text("byte 4 is NUL"));
  CHECK_THROWS_WITH(parse_strict_json("\xef\xbb\xbf{}", "file"), contains_text("a byte order mark"));
  CHECK(parse_strict_json("\"a\\u0000b\"", "file").get<std::string>() == std::string("a\0b", 3));
}

TEST_CASE("an integer of JSON is written as one, and in its range") {
  const auto read = [](const char* text, int64_t min, int64_t max) {
    return integer_from(nlohmann::json::parse(text), min, max, "field");
  };
  CHECK(read("7", 0, 7) == 7);
  CHECK(read("-7", -7, 7) == -7);
  CHECK(read("9223372036854775807", 0, INT64_MAX) == INT64_MAX);
  for (const char* wrong : {"8", "-1", "7.0", "1e0", "true", "null", "\"7\"", "[7]", "18446744073709551615",
                            "9223372036854775808", "1e300"}) {
    CHECK_THROWS_WITH(read(wrong, 0, 7),
                      contains_text("field: ") && contains_text("is not an integer from 0 to 7"));
  }
}
