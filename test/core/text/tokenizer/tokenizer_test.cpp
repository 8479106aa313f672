#include "core/text/tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "test/core/io/scratch_folder.h"
#include "test/core/text/tokenizer/definitions.h"
#include "test/support/catch.h"
#include "test/support/paths.h"

using namespace pptrain;
using namespace pptrain::tokenizer;

namespace {

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
}

std::string refusal(const nlohmann::json& document) {
  try {
    Tokenizer::parse(document.dump(), "t.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

nlohmann::json small() {
  // An explicit list: braces with two strings would be an object with one key.
  const auto merges = nlohmann::json::array({nlohmann::json::array({"a", "b"})});
  return {{"added_tokens", nlohmann::json::array()},
          {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}, {"ab", 2}}}, {"merges", merges}}}};
}

nlohmann::json token(const char* content, int id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

}  // namespace

TEST_CASE("merges, and tokens in the text") {
  nlohmann::json document = small();
  document["added_tokens"] = {token("<x>", 3)};
  const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "t.json");
  CHECK(tokenizer.encode("aab<x>b?", false) == std::vector<int32_t>{0, 2, 3, 1});
  CHECK(tokenizer.vocab_size() == 4);
  CHECK(tokenizer.is_special(3));
  CHECK(tokenizer.decode(std::vector<int32_t>{2, 3, 0, 99}, true) ==
        "ab a");  // without a decoder, as the package does
  CHECK(tokenizer.token_bytes().empty());
}

TEST_CASE("a prompt has the tokens before a text, its own at its end, and none that the file puts there") {
  nlohmann::json document = small();
  document["added_tokens"] = {token("<x>", 3)};
  document["post_processor"] = nlohmann::json::parse(R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<x>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "<x>", "type_id": 0}}, {"SpecialToken": {"id": "<x>", "type_id": 0}}],
      "pair": [], "special_tokens": {"<x>": {"id": "<x>", "ids": [3], "tokens": ["<x>"]}}})");
  const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "t.json");  // its eos is not known
  using Ids = std::vector<int32_t>;
  CHECK(tokenizer.encode("aab", true) == Ids{3, 0, 2, 3, 3});
  CHECK(tokenizer.encode_prompt("aab", true) == Ids{3, 0, 2});
  CHECK(tokenizer.encode_prompt("aab<x>", true) == Ids{3, 0, 2, 3});
  CHECK(tokenizer.encode_prompt("aab<x><x>", false) == Ids{0, 2, 3, 3});
  CHECK(tokenizer.encode_prompt("", true) == Ids{3});

  const ScratchFolder folder;
  std::filesystem::copy_file(definition("llama3"), folder.path() / "tokenizer.json");
  write(folder.path() / "tokenizer_config.json", R"({"eos_token": "<|eot_id|>"})");
  const Tokenizer chat = Tokenizer::load(folder.path());
  CHECK(chat.encode_prompt("Hi<|eot_id|>", true).back() == chat.eos_id());
}

TEST_CASE("a definition's text comes back, from many threads at once") {
  const Tokenizer tokenizer = Tokenizer::load(definition("llama3").parent_path());
  const std::string text = read_file(test::source_dir() / "configs/data/tinyshakespeare.txt");
  const std::vector<int32_t> ids = tokenizer.encode(text, false);
  CHECK(ids.size() < text.size() / 2);
  CHECK(tokenizer.decode(ids, false) == text);
  std::vector<std::vector<int32_t>> others(4);
  std::vector<std::thread> threads;
  for (auto& other : others) threads.emplace_back([&] { other = tokenizer.encode(text, false); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& other : others) CHECK(other == ids);
}

TEST_CASE("the bytes of a text are shared out among its tokens") {
  const std::string text =
      "To be, or not to be: \xc3\xa9t\xc3\xa9, \xf0\x9f\x91\x8d\xf0\x9f\x8f\xbd, \xe4\xb8\xad\xe6\x96\x87.";
  for (const char* name : {"gpt2", "llama2", "llama3", "qwen"}) {
    const Tokenizer tokenizer = Tokenizer::load(definition(name));
    const std::vector<uint32_t> bytes = tokenizer.token_bytes();
    REQUIRE(std::ssize(bytes) == tokenizer.vocab_size());
    size_t sum = 0;
    for (const int32_t id : tokenizer.encode(text, true)) sum += bytes[static_cast<size_t>(id)];
    INFO(name);
    CHECK(sum == text.size() + (std::string(name) == "llama2" ? 1 : 0));  // SentencePiece's blank
  }
}

TEST_CASE("a token's bytes are those between other tokens, whatever the first one of a text loses") {
  const std::string text = "To be, or not to be";
  const auto counted = [&](const char* decoder) {
    nlohmann::json document = nlohmann::json::parse(read_file(definition("llama2")));
    document["decoder"] = nlohmann::json::parse(decoder);
    const Tokenizer tokenizer = Tokenizer::parse(document.dump(), "t.json");
    const std::vector<int32_t> ids = tokenizer.encode(text, false);
    REQUIRE(tokenizer.decode(ids, false) == text);
    const std::vector<uint32_t> bytes = tokenizer.token_bytes();
    size_t sum = 0;
    for (const int32_t id : ids) sum += bytes[static_cast<size_t>(id)];
    return sum;
  };
  CHECK(counted(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"})") ==
        text.size() + 1);
  CHECK(counted(R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"})") ==
        text.size() + 1);
  const std::string mark = R"({"type": "Replace", "pattern": {"String": "▁"}, "content": " "})",
                    strip = R"({"type": "Strip", "content": " ", "start": 1, "stop": 0})";
  for (const std::string& steps : {R"({"type": "ByteFallback"}, {"type": "Fuse"}, )" + mark + ", " + strip,
                                   R"({"type": "ByteFallback"}, )" + mark + R"(, {"type": "Fuse"}, )" + strip,
                                   mark + R"(, {"type": "Fuse"}, )" + strip}) {
    INFO(steps);
    CHECK(counted((R"({"type": "Sequence", "decoders": [)" + steps + "]}").c_str()) == text.size() + 1);
  }
}

TEST_CASE("the end of a text is read from the files beside") {
  const ScratchFolder folder;
  std::filesystem::copy_file(definition("llama3"), folder.path() / "tokenizer.json");
  const auto load = [&] { return Tokenizer::load(folder.path()); };
  CHECK_FALSE(load().eos_id());
  CHECK(load().stop_ids().empty());

  const int32_t end = *load().id_of("<|end_of_text|>"), turn = *load().id_of("<|eot_id|>");
  write(folder.path() / "generation_config.json", R"({"eos_token_id": )" + std::to_string(turn) + "}");
  CHECK(load().eos_id() == turn);
  write(folder.path() / "tokenizer_config.json", R"({"eos_token": {"content": "<|end_of_text|>"}})");
  CHECK(load().eos_id() == end);
  CHECK(load().stop_ids() == std::vector{end, turn});
  CHECK_FALSE(load().bos_id());
  write(folder.path() / "tokenizer_config.json", R"({"bos_token": "<|eot_id|>", "eos_token": null})");
  CHECK(load().bos_id() == turn);
  write(folder.path() / "tokenizer_config.json", R"({"bos_token": "<none>"})");
  CHECK_FALSE(load().bos_id());
  write(folder.path() / "tokenizer_config.json", R"({"eos_token": "<none>"})");
  CHECK_THROWS_WITH(load(), test::contains_text("tokenizer_config.json: eos_token: '<none>' is no token"));

  // special_tokens_map.json says what tokenizer_config.json does not.
  write(folder.path() / "special_tokens_map.json",
        R"({"bos_token": "<|eot_id|>", "eos_token": {"content": "<|end_of_text|>"}})");
  write(folder.path() / "tokenizer_config.json", R"({"bos_token": "<|end_of_text|>", "eos_token": null})");
  CHECK(load().eos_id() == end);
  CHECK(load().stop_ids() == std::vector{end, turn});
  CHECK(load().bos_id() == end);
  std::filesystem::remove(folder.path() / "tokenizer_config.json");
  CHECK(load().eos_id() == end);
  CHECK(load().bos_id() == turn);
  write(folder.path() / "special_tokens_map.json", R"({"eos_token": "<none>"})");
  CHECK_THROWS_WITH(load(), test::contains_text("special_tokens_map.json: eos_token: '<none>' is no token"));
}

TEST_CASE("what is wrong in a file is said with its place") {
  nlohmann::json document = small();
  document["model"]["merges"].push_back({"b", "a"});
  CHECK(refusal(document) == "t.json: model.merges: merge 1: 'ba' is not in the vocabulary");

  document = small();
  document["model"]["merges"] = {"a b c"};
  CHECK(refusal(document) ==
        "t.json: model.merges: merge 0: 'a b c' is no two tokens with a space between them");

  document = small();
  document["model"]["vocab"]["c"] = 2;
  CHECK_THAT(refusal(document), test::contains_text("t.json: model.vocab: "));
  CHECK_THAT(refusal(document), test::contains_text("have the same id, 2"));

  document = small();
  document["model"]["vocab"]["c"] = -1;
  CHECK_THAT(refusal(document), test::contains_text("the id -1 of 'c' is no integer from 0"));

  document = small();
  document["model"]["unk_token"] = "?";
  CHECK(refusal(document) == "t.json: model.unk_token: '?' is not in the vocabulary");

  document = small();
  document["model"]["end_of_word_suffix"] = "</w>";
  CHECK(refusal(document) == "t.json: model.end_of_word_suffix: is not supported");

  document = small();
  document["added_tokens"] = {token("<x>", 7)};
  CHECK_THAT(
      refusal(document),
      test::contains_text("t.json: added_tokens[0]: '<x>' has the id 7, but the next that is free is 3"));
  document["added_tokens"] = {token("<x>", 3), token("<x>", 3)};
  CHECK(refusal(document) == "t.json: added_tokens[1]: '<x>' is there twice");

  document = small();
  document["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}};
  CHECK(refusal(document) == "t.json: pre_tokenizer.prepend_scheme: 'last' is not first, never or always");

  document = small();
  document["post_processor"] = {{"type", "BertProcessing"}, {"sep", {"s", 9}}, {"cls", {"c", 0}}};
  CHECK(refusal(document) == "t.json: post_processor: 9 is the id of no token");

  CHECK_THROWS_WITH(Tokenizer::load("/nowhere/tokenizer.json"),
                    test::contains_text("/nowhere/tokenizer.json"));
}

TEST_CASE(
    "pieces are one text; marked ids have a byte of a marked piece, and quoted special tokens are text") {
  const Tokenizer tokenizer = Tokenizer::load(definition("gpt2"));
  const std::vector<Piece> pieces = {{.text = "Say:\n\n"},
                                     {.text = "\n\nthe <|endoftext|> of it", .quoted = true, .marked = true},
                                     {.text = "<|endoftext|>", .marked = true},
                                     {.text = "\nth"},
                                     {.text = "en", .marked = true},
                                     {.text = "ce"}};
  std::vector<int32_t> ids = {7};  // of another text
  const std::vector<size_t> marks = tokenizer.encode_pieces(pieces, ids);
  ids.erase(ids.begin());
  const int32_t end = *tokenizer.id_of("<|endoftext|>");
  CHECK(std::ranges::count(ids, end) == 1);
  std::string all;
  std::vector<bool> marked_bytes, marked_ids(ids.size(), false);
  for (const Piece& piece : pieces) {
    all += piece.text;
    marked_bytes.insert(marked_bytes.end(), piece.text.size(), piece.marked);
  }
  CHECK(tokenizer.decode(ids, false) == all);
  REQUIRE(marks.size() == 4);
  for (size_t i = 0; i < marks.size(); i += 2) {
    for (size_t id = marks[i]; id < marks[i + 1]; ++id) marked_ids[id] = true;
  }
  const std::vector<uint32_t> sizes = tokenizer.token_bytes();
  size_t byte = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t size = ids[i] == end ? 13 : sizes[static_cast<size_t>(ids[i])];
    bool any = false;
    for (size_t k = 0; k < size; ++k) any = any || marked_bytes[byte + k];
    CHECK(marked_ids[i] == any);
    byte += size;
  }
  CHECK(byte == all.size());
  // Without special tokens in contents the ids are the text's ids.
  const std::vector<Piece> plain = {{.text = "a <|endoftext|> b\n\n"}, {.text = "  c", .quoted = true}};
  std::vector<int32_t> found;
  CHECK(tokenizer.encode_pieces(plain, found).empty());
  CHECK(found == tokenizer.encode("a <|endoftext|> b\n\n  c", false));
}

TEST_CASE("what does not say enough for pieces is refused") {
  nlohmann::json document = small();
  CHECK_THROWS_WITH(Tokenizer::parse(document.dump(), "t.json").require_pieces(),
                    test::contains_text("has no decoder"));
  document["decoder"] = {{"type", "Fuse"}};
  CHECK_NOTHROW(Tokenizer::parse(document.dump(), "t.json").require_pieces());
  document["added_tokens"] = {token("<x>", 3)};
  document["added_tokens"][0]["normalized"] = true;
  CHECK_THROWS_WITH(Tokenizer::parse(document.dump(), "t.json").require_pieces(),
                    test::contains_text("its special token '<x>' in normalized text"));
}
