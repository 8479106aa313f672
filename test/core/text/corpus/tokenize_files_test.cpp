#include "core/text/corpus/tokenize_files.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/core/io/scratch_folder.h"
#include "test/core/text/tokenizer/definitions.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain;
using namespace pptrain::corpus;
using pptrain::tokenizer::definition;
using pptrain::tokenizer::read_file;
using pptrain::tokenizer::Tokenizer;
namespace fs = std::filesystem;

namespace {

struct Result {
  std::vector<std::vector<int32_t>> documents;
  TokenizeProgress progress;
};

Result run(const Tokenizer& tokenizer, const fs::path& folder, const std::vector<fs::path>& files,
           TokenizeRequest request) {
  request.files = files;
  const fs::path prefix = folder / "out";
  Result result;
  uint64_t reported = 0;
  TokenWriter writer(prefix, 4, true);
  result.progress = tokenize_files(&tokenizer, request, writer, [&](const TokenizeProgress& progress) {
    CHECK(progress.bytes >= reported);
    reported = progress.bytes;
  });
  const std::string ids = read_file(prefix.string() + ".bin"), index = read_file(prefix.string() + ".idx");
  uint64_t count = 0;
  std::memcpy(&count, index.data() + 18, sizeof(count));
  size_t at = 0;
  for (uint64_t i = 0; i < count; ++i) {
    int32_t length = 0;
    std::memcpy(&length, index.data() + 34 + 4 * i, sizeof(length));
    std::vector<int32_t> document(static_cast<size_t>(length));
    std::memcpy(document.data(), ids.data() + at, 4 * document.size());
    at += 4 * document.size();
    result.documents.push_back(std::move(document));
  }
  CHECK(at == ids.size());
  return result;
}

// The first token of each range, and one behind its last.
std::vector<int64_t> prompts_in(const fs::path& folder) {
  const std::string bytes = read_file(folder / "out.prompts");
  std::vector<int64_t> numbers(bytes.size() / sizeof(int64_t) - 2);
  std::memcpy(numbers.data(), bytes.data() + 16, numbers.size() * sizeof(int64_t));
  return numbers;
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("documents of a file, with their ends, whatever the number of threads") {
  const ScratchFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(definition("llama3"));
  const std::string line = read_file(test::source_dir() / "configs/data/tinyshakespeare.txt").substr(0, 9000);
  std::vector<std::string> texts;
  for (int i = 0; i < 700; ++i)
    texts.push_back(std::to_string(i) + line.substr(0, static_cast<size_t>(i * 37 % 9000)));
  texts[5] = "";
  std::string all, jsonl;
  for (const std::string& text : texts) {
    all += text + "<doc>\n";
    jsonl += nlohmann::json{{"id", 1}, {"text", text}}.dump() + (text.empty() ? "\n\n" : "\r\n");
  }
  write(folder.path() / "all.txt", all);
  write(folder.path() / "all.jsonl", jsonl);

  texts.erase(texts.begin() + 5);  // the empty one is left out

  TokenizeRequest request;
  request.end_id = *tokenizer.id_of("<|end_of_text|>");
  for (const bool lines : {false, true}) {
    request.format.kind = lines ? config::DataFormat::jsonl : config::DataFormat::text;
    request.format.separator = "<doc>\n";
    for (const int threads : {1, 3}) {
      request.threads = threads;
      const Result result =
          run(tokenizer, folder.path(), {folder.path() / (lines ? "all.jsonl" : "all.txt")}, request);
      REQUIRE(result.documents.size() == texts.size());
      for (size_t i = 0; i < texts.size(); ++i) {
        std::vector<int32_t> expected = tokenizer.encode(texts[i], true);
        expected.push_back(*request.end_id);
        CHECK(result.documents[i] == expected);
      }
      CHECK(result.progress.bytes == result.progress.total_bytes);
      CHECK(result.progress.empty == 1);
    }
  }
}

TEST_CASE("a file is a document, and an end that is there is not put twice") {
  const ScratchFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(definition("llama3"));
  write(folder.path() / "a", "one");
  write(folder.path() / "b", "");
  write(folder.path() / "c", "two<|end_of_text|>");
  TokenizeRequest request;
  request.add_special = false;
  const std::vector<fs::path> files{folder.path() / "c", folder.path() / "b", folder.path() / "a"};
  const int32_t end = *tokenizer.id_of("<|end_of_text|>");
  Result result = run(tokenizer, folder.path(), files, request);
  REQUIRE(result.documents.size() == 2);
  CHECK(result.documents[0] == tokenizer.encode("two<|end_of_text|>", false));
  request.end_id = end;
  result = run(tokenizer, folder.path(), files, request);
  CHECK(result.documents[0] == tokenizer.encode("two<|end_of_text|>", false));
  CHECK(result.documents[1] == tokenizer.encode("one<|end_of_text|>", false));
}

TEST_CASE("a prompt's tokens come first and are counted; it has the tokens before a text, and none behind") {
  const ScratchFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(definition("llama3"));
  write(folder.path() / "a.jsonl", R"({"p": "Say so.", "c": " So."}
{"p": "", "c": "alone"}
{"p": "Go on.<|end_of_text|>", "c": "of it"}
{"p": "never answered", "c": ""})");
  TokenizeRequest request;
  request.format = {.kind = config::DataFormat::jsonl,
                    .key = "",
                    .prompt_key = "p",
                    .completion_key = "c",
                    .separator = ""};
  request.end_id = *tokenizer.id_of("<|end_of_text|>");
  const Result result = run(tokenizer, folder.path(), {folder.path() / "a.jsonl"}, request);
  REQUIRE(result.documents.size() == 3);
  CHECK(result.progress.empty == 1);
  const std::vector<int64_t> prompts = prompts_in(folder.path());
  REQUIRE(prompts.size() == 2 * 3);
  int64_t before = 0;
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {"Say so.", " So."}, {"", "alone"}, {"Go on.<|end_of_text|>", "of it"}};  // the text's own end stays
  for (size_t i = 0; i < 3; ++i) {
    std::vector<int32_t> expected = tokenizer.encode(pairs[i].first, true);
    CHECK(prompts[2 * i] == before);
    CHECK(prompts[2 * i + 1] == before + static_cast<int64_t>(expected.size()));
    tokenizer.encode(pairs[i].second, false, expected);
    expected.push_back(*request.end_id);
    CHECK(result.documents[i] == expected);
    before += static_cast<int64_t>(expected.size());
  }
}

TEST_CASE("documents are truncated to a limit, with their prompts, and counted") {
  const ScratchFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(definition("llama3"));
  write(folder.path() / "a.jsonl", R"({"p": "A longer one", "c": "never seen"}
{"p": "a", "c": "b"}
{"p": "a", "c": "of many more tokens"})");
  TokenizeRequest request;
  request.format = {.kind = config::DataFormat::jsonl, .prompt_key = "p", .completion_key = "c"};
  request.end_id = *tokenizer.id_of("<|end_of_text|>");
  const std::vector<std::vector<int32_t>> whole =
      run(tokenizer, folder.path(), {folder.path() / "a.jsonl"}, request).documents;
  request.max_tokens = 4;
  const Result result = run(tokenizer, folder.path(), {folder.path() / "a.jsonl"}, request);
  REQUIRE(whole[1].size() == 4);  // begin, a, b, end
  CHECK(result.progress.truncated == 2);
  for (size_t i = 0; i < 3; ++i)
    CHECK(result.documents[i] == std::vector<int32_t>(whole[i].begin(), whole[i].begin() + 4));
  CHECK(prompts_in(folder.path()) == std::vector<int64_t>{0, 4, 4, 6, 8, 10});
}

TEST_CASE("lists of tokens are taken as they are, and labels say which are targets") {
  const ScratchFolder folder;
  write(folder.path() / "a.jsonl", R"({"ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]}
{"ids": [], "labels": []}
{"ids": [9], "labels": [9]}
{"ids": [10, 11], "labels": [-100, -100]})");
  TokenizeRequest request;
  request.files = {folder.path() / "a.jsonl"};
  request.format = {
      .kind = config::DataFormat::jsonl, .tokens_key = "ids", .labels_key = "labels", .vocab_size = 12};
  request.end_id = 3;
  TokenWriter writer(folder.path() / "out", 2, true);
  const TokenizeProgress progress = tokenize_files(nullptr, request, writer, [](const TokenizeProgress&) {});
  CHECK(progress.documents == 3);
  CHECK(progress.empty == 1);
  CHECK(progress.prompt_tokens == 4);
  CHECK(prompts_in(folder.path()) == std::vector<int64_t>{0, 1, 2, 3, 5, 7});
  const std::string ids = read_file(folder.path() / "out.bin");
  CHECK(ids == std::string("\5\0\6\0\7\0\10\0\11\0\12\0\13\0", 14));
}

TEST_CASE("what is wrong with a file is said, and nothing is left behind") {
  const ScratchFolder folder;
  const Tokenizer tokenizer = Tokenizer::load(definition("gpt2"));
  const auto fault = [&](const std::string& text, const std::string& key) {
    write(folder.path() / "x.jsonl", text);
    TokenizeRequest request;
    request.files = {folder.path() / "x.jsonl"};
    request.format.kind = config::DataFormat::jsonl;
    request.format.key = key;
    request.threads = 2;
    try {
      TokenWriter writer(folder.path() / "out", 2, false);
      tokenize_files(&tokenizer, request, writer, [](const TokenizeProgress&) {});
    } catch (const Error& error) {
      CHECK_FALSE(fs::exists(folder.path() / "out.bin"));
      CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(fault("{\"text\": \"a\"}\n{\"text\": 1}\n", "text"),
             test::contains_text("x.jsonl:2: 'text' is no text"));
  CHECK_THAT(fault("{\"text\": \"a\"}\n\n{\"t\": 1}\n", "text"),
             test::contains_text("x.jsonl:3: the object has no key 'text'; it has: t"));
  CHECK_THAT(fault("[1]", "text"), test::contains_text("x.jsonl:1: not a JSON object"));
  CHECK_THAT(fault("{\"text\": \"a}\n", "text"),
             test::contains_text("x.jsonl:1: not valid JSON: it ends too early"));
}
