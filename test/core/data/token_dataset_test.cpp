#include "core/data/token_dataset.h"

#include <numeric>

#include "core/base/error.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

std::vector<int64_t> read(const TokenDataset& dataset, int64_t first, int64_t count) {
  std::vector<int64_t> out(static_cast<size_t>(count));
  dataset.read(first, out);
  return out;
}

std::vector<int64_t> read_all(const TokenDataset& dataset) {
  return read(dataset, 0, dataset.size());
}

}  // namespace

TEST_CASE("text is bytes, high ones too") {
  const ScratchFolder folder;
  const TokenDataset dataset({.paths = {folder.write("a.txt", "Hi\n\xff")}}, 256);
  CHECK(read_all(dataset) == std::vector<int64_t>{72, 105, 10, 255});
}

TEST_CASE("headerless ids of both types") {
  const ScratchFolder folder;
  const auto small = write_ids<uint16_t>(folder, "a.bin", {0, 1, 65535, 50256});
  CHECK(read_all(TokenDataset({{small}, Format::bin, 2}, 65536)) == std::vector<int64_t>{0, 1, 65535, 50256});
  const auto large = write_ids<uint32_t>(folder, "b.bin", {7, 128255, 65536});
  CHECK(read_all(TokenDataset({{large}, Format::bin, 4}, 128256)) == std::vector<int64_t>{7, 128255, 65536});
  const auto odd = folder.write("odd.bin", "abc");
  CHECK_THROWS_WITH(TokenDataset({{odd}, Format::bin, 2}, 256),
                    contains_text("odd.bin") && contains_text("data.dtype"));
}

TEST_CASE("llm.c's format") {
  const ScratchFolder folder;
  const auto gpt2 = write_ids<uint16_t>(folder, "gpt2.bin", {50256, 3, 4}, llmc_header(20240520, 1, 3));
  CHECK(read_all(TokenDataset({{gpt2}, Format::llmc}, 50257)) == std::vector<int64_t>{50256, 3, 4});
  const auto llama3 = write_ids<uint32_t>(folder, "llama3.bin", {128000, 9}, llmc_header(20240801, 7, 2));
  CHECK(read_all(TokenDataset({{llama3}, Format::llmc}, 128256)) == std::vector<int64_t>{128000, 9});

  const auto refused = [&](const std::string& name, const std::filesystem::path& path,
                           const std::string& why) {
    CHECK_THROWS_WITH(TokenDataset({{path}, Format::llmc}, 50257), contains_text(name) && contains_text(why));
  };
  refused("magic.bin", write_ids<uint16_t>(folder, "magic.bin", {1, 2}, llmc_header(1, 1, 2)), "magic 1");
  refused("version.bin", write_ids<uint16_t>(folder, "version.bin", {1, 2}, llmc_header(20240520, 7, 2)),
          "version 7");
  refused("short.bin", write_ids<uint16_t>(folder, "short.bin", {1, 2}), "too few");
  refused("cut.bin", write_ids<uint16_t>(folder, "cut.bin", {1, 2}, llmc_header(20240520, 1, 3)), "3 tokens");
  refused("long.bin", write_ids<uint16_t>(folder, "long.bin", {1, 2}, llmc_header(20240520, 1, 1)),
          "1 tokens");
  refused("negative.bin", write_ids<uint16_t>(folder, "negative.bin", {1}, llmc_header(20240520, 1, -1)),
          "-1 tokens");
}

TEST_CASE("a folder is its files in the order of their names") {
  const ScratchFolder folder;
  folder.write("b.txt", "cd");
  folder.write("a.txt", "ab");
  folder.write("c.txt", "");
  folder.write("d.txt", "efg");
  folder.write("a.bin", "ignored");
  const TokenDataset dataset({.paths = {folder.path()}}, 256);
  std::vector<int64_t> expected(7);
  std::iota(expected.begin(), expected.end(), 'a');
  CHECK(read_all(dataset) == expected);
  for (int64_t first = 0; first <= 7; ++first) {  // every window, across the files' borders
    for (int64_t last = first; last <= 7; ++last) {
      const std::vector<int64_t> window(expected.begin() + first, expected.begin() + last);
      CHECK(read(dataset, first, last - first) == window);
      CHECK(read_all(dataset.slice(first, last)) == window);
    }
  }
  CHECK_THROWS_AS(read(dataset, 6, 2), Error);
  CHECK_THROWS_AS(read(dataset, -1, 2), Error);
  CHECK_THROWS_AS(read(dataset.slice(2, 4), 1, 2), Error);
  CHECK_THROWS_AS(dataset.slice(2, 8), Error);
}

TEST_CASE("what is not there is named") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH(TokenDataset({.paths = {folder / "nowhere"}}, 256), contains_text("nowhere"));
  CHECK_THROWS_WITH(TokenDataset({.paths = {folder.path()}}, 256), contains_text("without *.txt files"));
  CHECK_THROWS_WITH(TokenDataset({.paths = {folder.write("empty.txt", "")}}, 256),
                    contains_text("empty.txt") && contains_text("no tokens"));
  CHECK_THROWS_WITH(TokenDataset({{folder.write("a.jsonl", "{}")}, Format::jsonl}, 256),
                    contains_text("texts are no tokens"));
}

TEST_CASE("an id beyond the vocabulary is named with its file and place") {
  const ScratchFolder folder;
  write_ids<uint16_t>(folder, "a.bin", {1, 2, 3});
  write_ids<uint16_t>(folder, "b.bin", {1, 2, 77, 3});
  const TokenDataset dataset({{folder.path()}, Format::bin, 2}, 77);
  CHECK(read(dataset, 0, 5).size() == 5);
  CHECK_THROWS_WITH(read(dataset, 2, 4), contains_text("b.bin") && contains_text("token 2 ") &&
                                             contains_text("id 77") && contains_text("vocab_size is 77"));
}

TEST_CASE("samples overlap in one token") {
  const ScratchFolder folder;
  const TokenDataset dataset({.paths = {folder.write("a.txt", std::string(21, 'x'))}}, 256);
  CHECK(dataset.samples(5) == 4);
  CHECK(dataset.samples(20) == 1);
  CHECK(dataset.samples(21) == 0);
  CHECK(dataset.slice(0, 20).samples(5) == 3);
  CHECK(dataset.slice(0, 0).samples(5) == 0);
}

TEST_CASE("the validation split") {
  const ScratchFolder folder;
  const auto train = folder.write("train.txt", "abcdefghij");
  TokenDataset all({.paths = {train}}, 256);
  CHECK_FALSE(split_off(all, 0).has_value());
  CHECK(all.size() == 10);
  const auto validation = split_off(all, 0.25);
  CHECK(read_all(all) == std::vector<int64_t>{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'});
  CHECK(read_all(validation.value()) == std::vector<int64_t>{'i', 'j'});
  CHECK_THROWS_AS(split_off(all, 1.0), UsageError);
  CHECK_THROWS_AS(split_off(all, -0.1), UsageError);
}

TEST_CASE("random tokens are those of their seed and place, wherever they are read") {
  const TokenDataset dataset({.paths = {}, .format = Format::random, .seed = 3}, 1000);
  CHECK(dataset.size() == int64_t{1} << 48);
  CHECK(read(dataset, 0, 5) == std::vector<int64_t>{529, 915, 94, 821, 278});
  CHECK(read(dataset, int64_t{1} << 47, 3) == std::vector<int64_t>{480, 204, 705});
  CHECK(read(dataset.slice(2, 10), 1, 2) == std::vector<int64_t>{821, 278});
}
