#include "core/text/corpus/documents.h"

#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::corpus;
using pptrain::test::contains_text;
namespace fs = std::filesystem;

namespace {

std::string gzip(const std::string& text) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 3));
  return packed;
}

struct Read {
  std::vector<std::string> texts;
  size_t chunks = 0;
  uint64_t bytes = 0, all_bytes = 0;
};

Read read(const std::vector<fs::path>& files, const DocumentFormat& format) {
  Read result;
  result.all_bytes = bytes_of(files);
  const NextChunk next = chunks_of(files, format);
  while (const auto chunk = next()) {
    ++result.chunks;
    result.bytes += chunk->bytes;
    each_document(*chunk, format, [&](const Document& document) {
      if (format.has_prompts()) result.texts.emplace_back(document.prompt);
      result.texts.emplace_back(document.text);
    });
  }
  return result;
}

const DocumentFormat lines{.kind = config::DataFormat::jsonl,
                           .key = "text",
                           .prompt_key = "",
                           .completion_key = "",
                           .separator = ""};

// 3 MB of documents, one of them of 1.5 MB.
std::vector<std::string> many_texts() {
  std::vector<std::string> texts;
  for (int i = 0; i < 600; ++i)
    texts.push_back(std::to_string(i) + std::string(static_cast<size_t>(i * 7 % 5000), 'x'));
  texts[300] += std::string(1'500'000, 'y');
  return texts;
}

}  // namespace

TEST_CASE("lines of plain and of packed files are the same documents, whatever pieces they are packed in") {
  const ScratchFolder folder;
  const std::vector<std::string> texts = many_texts();
  std::string all;
  for (size_t i = 0; i < texts.size(); ++i)
    all += nlohmann::json{{"text", texts[i]}}.dump() + (i + 1 < texts.size() ? "\n" : "");
  // Several members in one file, divided anywhere.
  const std::string gzips = gzip(all.substr(0, 1000)) + gzip("") + gzip(all.substr(1000));
  const std::string zstds = zstd(all.substr(0, 1'200'001)) + zstd(all.substr(1'200'001));
  const std::vector<fs::path> files = {folder.write("a.jsonl", all), folder.write("b.jsonl.gz", gzips),
                                       folder.write("c.jsonl.zst", zstds)};
  for (const fs::path& file : files) {
    const Read result = read({file}, lines);
    CHECK(result.texts == texts);
    CHECK(result.chunks > 1);
    CHECK(result.bytes == result.all_bytes);
    CHECK(result.all_bytes == fs::file_size(file));
  }
  CHECK(read(files, lines).texts.size() == 3 * texts.size());
}

TEST_CASE("a packed text is a document, or several with a separator") {
  const ScratchFolder folder;
  DocumentFormat format;
  CHECK(read({folder.write("a.txt.gz", gzip("one\n\ntwo"))}, format).texts ==
        std::vector<std::string>{"one\n\ntwo"});
  format.separator = "\n\n";
  CHECK(read({folder.write("b.txt.zst", zstd("one\n\ntwo"))}, format).texts ==
        std::vector<std::string>{"one", "two"});
  CHECK(read({folder.write("c.txt.zst", zstd(""))}, format).texts.empty());
}

TEST_CASE("what is wrong with a packed file is said, with its line") {
  const ScratchFolder folder;
  std::string text;
  for (int i = 1; i <= 90000; ++i)
    text += i == 80001 ? "{\"text\": 3}\n" : "{\"text\": \"line of a document\"}\n";
  for (const std::string& name :
       {folder.write("a.jsonl.gz", gzip(text)).string(), folder.write("a.jsonl.zst", zstd(text)).string()})
    CHECK_THROWS_WITH(read({name}, lines), contains_text(name + ":80001: 'text' is no text"));
  const auto cut = [&](const std::string& packed) { return packed.substr(0, packed.size() - 9); };
  for (const auto& file :
       {folder.write("cut.jsonl.gz", cut(gzip(text))), folder.write("cut.jsonl.zst", cut(zstd(text)))})
    CHECK_THROWS_WITH(read({file}, DocumentFormat()), contains_text("it is cut"));
  CHECK_THROWS_WITH(read({folder.write("no.jsonl.gz", "{\"text\": \"plain\"}\n")}, lines),
                    contains_text("no sound gzip"));
  CHECK_THROWS_WITH(read({folder.write("no.jsonl.zst", "{\"text\": \"plain\"}\n")}, lines),
                    contains_text("no sound zstd"));
  CHECK_THROWS_AS(read({folder.path() / "nowhere.jsonl"}, lines), Error);
}

TEST_CASE("bytes that are no UTF-8 count as U+FFFD") {
  const ScratchFolder folder;
  CHECK(read({folder.write("a.jsonl", "{\"text\": \"a\xff\xe4z\"}\n")}, lines).texts ==
        std::vector<std::string>{"a\xef\xbf\xbd\xef\xbf\xbdz"});
}

TEST_CASE("lines without a document are an error, or are passed over and told with their places") {
  const ScratchFolder folder;
  const std::string deep = std::string(512, '[') + std::string(512, ']');
  const std::vector<std::string> odd = {R"({"text": "\ud800"})",
                                        R"({"text": "a", "n": NaN})",
                                        R"({"text": "a", "n": 1e999})",
                                        R"({"text": "a", "n": )" + deep + "}",
                                        R"({"text": "a", "text": "b"})",
                                        R"({"n": 1})",
                                        R"({"text": 5})",
                                        R"(["text"])",
                                        R"({"text": "a)"};
  std::string all;
  for (const std::string& line : odd) {
    all += "{\"text\": \"good\"}\n\n" + line + "\n";
    const auto file = folder.write("one.jsonl", "{\"text\": \"good\"}\n" + line + "\n");
    CHECK_THROWS_WITH(read({file}, lines), contains_text("one.jsonl:2: ") && contains_text("bad_lines"));
  }
  DocumentFormat format = lines;
  format.skip_bad_lines = true;
  for (const auto& file : {folder.write("all.jsonl", all), folder.write("all.jsonl.gz", gzip(all))}) {
    CHECK(read({file}, format).texts == std::vector<std::string>(odd.size(), "good"));
    std::vector<std::string> told;
    const auto chunk = open_chunks(file, format)();
    each_document(
        *chunk, format, [](const Document&) {}, [&](const std::string& what) { told.push_back(what); });
    REQUIRE(told.size() == odd.size());
    for (size_t i = 0; i < told.size(); ++i)
      CHECK_THAT(told[i], contains_text(file.string() + ":" + std::to_string(3 * i + 3) + ": "));
  }
  // An error while a good line is processed does not make it a bad line.
  const auto good = open_chunks(folder.write("good.jsonl", "{\"text\": \"good\"}\n"), format)();
  CHECK_THROWS_WITH(each_document(*good, format, [](const Document&) { throw Error("not the line's"); }),
                    "not the line's");
}

TEST_CASE("what stands beside the text may be nested deeply") {
  const ScratchFolder folder;
  const std::string deep = std::string(511, '[') + std::string(511, ']');
  CHECK(read({folder.write("a.jsonl", R"({"text": "a", "n": )" + deep + "}\n")}, lines).texts ==
        std::vector<std::string>{"a"});
}

TEST_CASE("a byte order mark begins no line") {
  const ScratchFolder folder;
  const std::string text = "\xEF\xBB\xBF{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  for (const auto& file : {folder.write("a.jsonl", text), folder.write("a.jsonl.gz", gzip(text))}) {
    const Read result = read({file}, lines);
    CHECK(result.texts == std::vector<std::string>{"one", "two"});
    CHECK(result.bytes == result.all_bytes);
  }
  CHECK(read({folder.write("mark.jsonl", "\xEF\xBB\xBF")}, lines).texts.empty());
  CHECK_THROWS_AS(read({folder.write("late.jsonl", "{\"text\": \"one\"}\n" + text)}, lines), Error);
}

TEST_CASE("zeros behind a piece of gzip are padding") {
  const ScratchFolder folder;
  const std::string padding(70'000, '\0');
  const std::vector<std::string> both = {"one", "two"};
  const std::string one = gzip("{\"text\": \"one\"}\n"), two = gzip("{\"text\": \"two\"}\n");
  for (const std::string& packed : {one + two + padding, one + padding + two + padding, one + two + '\0'}) {
    const Read result = read({folder.write("a.jsonl.gz", packed)}, lines);
    CHECK(result.texts == both);
    CHECK(result.bytes == result.all_bytes);
  }
  CHECK_THROWS_WITH(read({folder.write("b.jsonl.gz", one + padding + "what is no gzip")}, lines),
                    contains_text("no sound gzip"));
}

TEST_CASE("prompts and completions of a line") {
  const ScratchFolder folder;
  DocumentFormat format = lines;
  format.prompt_key = "ask";
  format.completion_key = "answer";
  const auto file = folder.write(
      "a.jsonl", "{\"ask\": \"1\", \"answer\": \"one\", \"text\": 5}\n\n{\"answer\": \"\", \"ask\": \"2\"}");
  CHECK(read({file}, format).texts == std::vector<std::string>{"1", "one", "2", ""});
  CHECK_THROWS_WITH(read({folder.write("b.jsonl", "{\"ask\": \"1\"}")}, format),
                    contains_text("b.jsonl:1: the object has no key 'answer'; it has: ask"));
}

TEST_CASE("files in a form that is not read are refused with what converts them") {
  const ScratchFolder folder;
  const auto refused = [&](const char* name, const std::string& bytes, const char* words) {
    INFO(name);
    for (const auto& format : {lines, DocumentFormat()})
      CHECK_THROWS_WITH(read({folder.write(name, bytes)}, format),
                        contains_text(name) && contains_text(words));
  };
  using namespace std::string_literals;
  refused("a.jsonl.bz2", "BZh91AY&SY\x01", "bzip2 packed it, but only .gz and .zst are unpacked: bzcat '");
  refused("a.jsonl.xz", "\xfd\x37zXZ\0\0"s, "xz packed it");
  refused("a.jsonl", gzip("{}"), "gzip packed it, but its name does not end in .gz");
  refused("b.jsonl", zstd("{}"), "zstd packed it, but its name does not end in .zst");
  refused("c.jsonl", "PAR1....", "data.format = \"parquet\"");
  refused("le.jsonl", "\xff\xfe{\0"s, "the text is UTF-16, but UTF-8 is read: iconv -f UTF-16 -t UTF-8 '");
  refused("plain.jsonl", "{\0\"\0t\0e\0x\0"s, "iconv -f UTF-16LE");
  refused("wide.jsonl.gz", gzip("\xfe\xff\0{\0\"\0t"s), "the text is UTF-16");
  DocumentFormat skips = lines;
  skips.skip_bad_lines = true;
  for (const char* array : {"[\n  {\"text\": \"one\"},\n  {\"text\": \"two\"}\n]\n",
                            "[{\"text\": \"one\"}]\n", "[{\"text\": \"one\"},\n{\"text\": \"two\"}]"})
    CHECK_THROWS_WITH(read({folder.write("a.jsonl", array)}, skips),
                      contains_text("it is one JSON array, but a whole object on each line is read") &&
                          contains_text("jq -c '.[]'"));
  CHECK_THROWS_WITH(read({folder.write("a.jsonl", "{\n  \"text\": \"one\"\n}\n")}, lines),
                    contains_text("an object goes on over several lines"));
  CHECK(read({folder.write("a.jsonl", "[\"header\"]\n{\"text\": \"one\"}\n")}, skips).texts ==
        std::vector<std::string>{"one"});
  DocumentFormat text;
  CHECK(read({folder.write("a.txt", "BZh, a word")}, text).texts == std::vector<std::string>{"BZh, a word"});
}
