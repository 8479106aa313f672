#include "core/text/corpus/cache.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/token_dataset.h"
#include "test/core/io/scratch_folder.h"
#include "test/core/text/tokenizer/definitions.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::corpus;
using pptrain::tokenizer::definition;
using pptrain::tokenizer::Tokenizer;
namespace fs = std::filesystem;

namespace {

const auto silent = [](const TokenizeProgress&) {};

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  return names;
}

struct Fixture {
  ScratchFolder folder;
  TokenizeRequest request;
  std::vector<fs::path> places;

  Fixture() {
    request.files = {folder.write("a.jsonl", "{\"text\": \"one two\"}\n{\"text\": \"three\"}\n")};
    request.tokenizer = definition("gpt2");
    request.format.kind = config::DataFormat::jsonl;
    request.threads = 2;
    places = {folder.path() / "cache"};
  }
};

}  // namespace

TEST_CASE_METHOD(Fixture, "a cache is a token file that a loader reads, found again by its name") {
  const std::string name = cache_name(request);
  CHECK(find_cache(places, name).empty());
  const fs::path cache = make_cache(places, name, request, silent);
  CHECK(cache == places[0] / name);
  CHECK(find_cache(places, name) == cache);
  CHECK(names_in(places[0]) == std::vector<std::string>{name});
  const data::TokenDataset tokens({.paths = {token_file(cache)}, .format = data::Format::megatron}, 100000);
  const Tokenizer tokenizer = Tokenizer::load(request.tokenizer);
  std::vector<int64_t> expected, found(static_cast<size_t>(tokens.size()));
  for (const char* text : {"one two", "three"}) {
    for (const int32_t id : tokenizer.encode(text, true)) expected.push_back(id);
    if (tokenizer.eos_id()) expected.push_back(*tokenizer.eos_id());
  }
  tokens.read(0, found);
  CHECK(found == expected);
  CHECK(tokens.indexed_documents().size() == 3);
}

TEST_CASE_METHOD(Fixture,
                 "whatever tokens depend on changes the name, and what they do not depend on does not") {
  const std::string name = cache_name(request), print = fingerprint(request);
  std::vector<std::string> names = {name};
  const auto other = [&](const auto& change) {
    TokenizeRequest changed = request;
    change(changed);
    CHECK(fingerprint(changed) != print);
    for (const std::string& known : names) CHECK(cache_name(changed) != known);
    names.push_back(cache_name(changed));
  };
  other([](TokenizeRequest& r) { r.tokenizer = definition("llama3"); });
  other([](TokenizeRequest& r) { r.format.key = "body"; });
  other([](TokenizeRequest& r) { r.format.prompt_key = "p", r.format.completion_key = "c"; });
  other([](TokenizeRequest& r) { r.add_special = false; });
  other([](TokenizeRequest& r) { r.end_id = 5; });
  other([&](TokenizeRequest& r) { r.files.push_back(r.files.front()); });
  other([&](TokenizeRequest& r) {
    r.files = {folder.write("b.jsonl", "{\"text\": \"one TWO\"}\n{\"text\": \"three\"}\n")};
  });
  // With skip_bad_lines the cache may lack lines that other jobs refuse; otherwise it has the same tokens.
  TokenizeRequest skips = request;
  skips.format.skip_bad_lines = true;
  CHECK(fingerprint(skips) == print);
  CHECK(cache_name(skips) != name);
  // If a long file changes at a place that its fingerprint does not read, its time still differs.
  fs::last_write_time(request.files[0], fs::last_write_time(request.files[0]) + std::chrono::seconds(1));
  CHECK(fingerprint(request) == print);
  CHECK(cache_name(request) != name);
}

TEST_CASE_METHOD(Fixture, "of the files beside a tokenizer only the token that ends a text counts") {
  fs::copy_file(definition("llama3"), folder.path() / "tokenizer.json");
  request.tokenizer = folder.path();
  const auto with = [&](const std::string& tokenizer_config, const std::string& generation_config) {
    folder.write("tokenizer_config.json", tokenizer_config);
    folder.write("generation_config.json", generation_config);
    return fingerprint(request);
  };
  const std::string none = fingerprint(request);
  const std::string end = with(R"({"eos_token": "<|end_of_text|>"})", "{}");
  CHECK(end != none);
  CHECK(with(R"({"eos_token": {"content": "<|end_of_text|>"}, "chat_template": "x"})",
             R"({"temperature": 0.6, "eos_token_id": [1, 2]})") == end);
  CHECK(with(R"({"eos_token": "<|eot_id|>"})", "{}") != end);
  CHECK(with(R"({"chat_template": "y"})", R"({"eos_token_id": [1, 2]})") == none);  // neither of the two
  const std::string number = with("{}", R"({"eos_token_id": 2, "top_p": 0.5})");
  CHECK(number != none);
  CHECK(with(R"({"eos_token": null})", R"({"eos_token_id": [2]})") == number);
  folder.write("special_tokens_map.json", R"({"eos_token": "<|end_of_text|>", "pad_token": "x"})");
  CHECK(with("{}", R"({"eos_token_id": 2})") == end);
  CHECK(with(R"({"eos_token": "<|eot_id|>"})", "{}") != end);  // tokenizer_config.json comes first
  fs::remove(folder / "special_tokens_map.json");
  // If the job gives the token, the files do not matter.
  request.end_id = 5;
  CHECK(with(R"({"eos_token": "<|eot_id|>"})", "{}") == with("{}", "{}"));
}

TEST_CASE_METHOD(Fixture, "bad lines are counted in a cache, with the first") {
  request.files = {folder.write("c.jsonl", "{\"text\": \"one\"}\nno\n{\"text\": \"two\"}\n[]\n")};
  CHECK_THROWS_WITH(make_cache(places, "name", request, silent), test::contains_text("c.jsonl:2: "));
  request.format.skip_bad_lines = true;
  TokenizeProgress last;
  const fs::path cache =
      make_cache(places, "name", request, [&](const TokenizeProgress& progress) { last = progress; });
  CHECK(last.documents == 2);
  CHECK(last.bad == 2);
  CHECK_THAT(last.first_bad, test::contains_text("c.jsonl:2: "));
  const std::string about = tokenizer::read_file(cache / "about.json");
  CHECK_THAT(about, test::contains_text("\"bad_lines\": 2") && test::contains_text("c.jsonl:2: "));
}

TEST_CASE_METHOD(Fixture,
                 "a failure, a stop and a killed process leave no cache, and the next one tidies up") {
  const std::string name = cache_name(request);
  CHECK_THROWS_WITH(
      make_cache(places, name, request, [](const TokenizeProgress&) { throw std::runtime_error("stop"); }),
      "stop");
  CHECK(names_in(places[0]).empty());
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    make_cache(places, name, request, [](const TokenizeProgress&) { ::_exit(9); });
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WEXITSTATUS(status) == 9);
  REQUIRE(names_in(places[0]).size() == 1);  // the unfinished cache
  CHECK(find_cache(places, name).empty());
  make_cache(places, name, request, silent);
  CHECK(names_in(places[0]) == std::vector<std::string>{name});
}

TEST_CASE_METHOD(Fixture,
                 "the first folder that can be written is taken; texts without a document are refused") {
  places.insert(places.begin(), request.files[0] / "below a file");
  CHECK(make_cache(places, "name", request, silent) == places[1] / "name");
  CHECK(find_cache(places, "name") == places[1] / "name");
  CHECK_THROWS_WITH(make_cache(std::span(places).first(1), "name", request, silent),
                    test::contains_text("give a folder, data.cache"));
  request.files = {folder.write("none.jsonl", "{\"text\": \"\"}\n")};
  CHECK_THROWS_WITH(make_cache(places, "other", request, silent), test::contains_text("has no document"));
}
