#include "core/data/inspect.h"

#include <sys/stat.h>

#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

TEST_CASE("a text has no zero byte") {
  const ScratchFolder folder;
  const auto look = [&](const std::string& text) {
    inspect({.paths = {folder.write("a.txt", text)}, .format = Format::text}, 256);
  };
  CHECK_NOTHROW(look("plain, and \xc3\xa4 \xf0\x9f\x98\x80, and \xe4 of Latin-1\r\n\t"));
  CHECK_THROWS_WITH(look(std::string("abc\0def", 7)), contains_text("a.txt': byte 3 is 0"));
  CHECK_THROWS_WITH(look(std::string("a\0b\0", 4)), contains_text("UTF-16"));
  // Anywhere in a short text, and at each place that is read in a long one.
  std::string text(300'000, 'a');
  text[299'999] = '\0';
  CHECK_THROWS_WITH(look(text), contains_text("byte 299999 is 0"));
  std::string all(5'000'000, 'a');
  for (size_t i = 0; i < all.size(); i += 2) all[i] = '\0';
  all[0] = 'b';
  CHECK_THROWS_WITH(look(all), contains_text("byte 2 is 0"));
  CHECK_THROWS_WITH(look(llmc_header(20240520, 1, 4) + "12345678"), contains_text("data.format = \"llmc\""));
}

TEST_CASE("token files are of the format that the job says") {
  const ScratchFolder folder;
  const auto bin = [](const std::filesystem::path& path, int bytes) {
    return Source{.paths = {path}, .format = Format::bin, .token_bytes = bytes};
  };
  const auto ids = write_ids<uint16_t>(folder, "a.bin", {1, 2, 3, 999});
  CHECK_NOTHROW(inspect(bin(ids, 2), 1000));
  CHECK_THROWS_WITH(inspect(bin(ids, 2), 999), contains_text("token 3 has id 999"));
  CHECK_THROWS_WITH(inspect(bin(ids, 4), 1000), contains_text("data.dtype"));  // pairs of ids are large ones
  CHECK_THROWS_WITH(inspect(bin(folder.write("odd.bin", "abc"), 2), 30000),
                    contains_text("3 bytes are not a whole"));
  const auto llmc = folder.write("llmc.bin", llmc_header(20240520, 1, 2) + std::string(4, '\1'));
  CHECK_NOTHROW(inspect({.paths = {llmc}, .format = Format::llmc}, 300));
  CHECK_THROWS_WITH(inspect(bin(llmc, 2), 1 << 16), contains_text("has llm.c's header"));
  CHECK_THROWS_WITH(inspect({.paths = {ids}, .format = Format::llmc}, 300),
                    contains_text("too few for llm.c's header"));
  // In the middle of a long stream.
  std::vector<uint32_t> many(2'000'000, 7);
  for (size_t i = 900'000; i < 1'100'000; ++i) many[i] = 70'000;
  CHECK_THROWS_WITH(inspect(bin(write_ids<uint32_t>(folder, "many.bin", many), 4), 50'000),
                    contains_text("has id 70000"));
}

TEST_CASE("every file of a folder is looked at") {
  const ScratchFolder folder;
  for (int i = 0; i < 40; ++i) folder.write("part" + std::to_string(100 + i) + ".txt", "text");
  CHECK_NOTHROW(inspect({.paths = {folder.path()}, .format = Format::text}, 256));
  folder.write("part133.txt", std::string("te\0t", 4));
  CHECK_THROWS_WITH(inspect({.paths = {folder.path()}, .format = Format::text}, 256),
                    contains_text("part133.txt"));
}

TEST_CASE("ids of four bytes read as two are seen by their empty halves") {
  const ScratchFolder folder;
  const auto read_as = [](const std::filesystem::path& path, int bytes) {
    return looks_like_uint32({.paths = {path}, .format = Format::bin, .token_bytes = bytes});
  };
  const std::vector<uint32_t> wide(32, 999);
  CHECK(read_as(write_ids<uint32_t>(folder, "wide.bin", wide), 2));
  CHECK_FALSE(read_as(folder.path() / "wide.bin", 4));
  CHECK_FALSE(read_as(write_ids<uint32_t>(folder, "few.bin", std::vector<uint32_t>(31, 999)), 2));
  std::vector<uint16_t> narrow(64, 0);
  for (size_t i = 0; i < narrow.size(); i += 2) narrow[i] = 999;
  narrow[63] = 1;
  CHECK_FALSE(read_as(write_ids<uint16_t>(folder, "narrow.bin", narrow), 2));
  // Places of a large file begin at odd bytes too: 20157 and its multiples here.
  CHECK(read_as(write_ids<uint32_t>(folder, "large.bin", std::vector<uint32_t>(120'001, 999)), 2));
}
