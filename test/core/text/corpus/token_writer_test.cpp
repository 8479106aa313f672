#include "core/text/corpus/token_writer.h"

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "test/core/io/scratch_folder.h"
#include "test/core/text/tokenizer/definitions.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::corpus;
using pptrain::tokenizer::definition;
using pptrain::tokenizer::read_file;
using pptrain::tokenizer::Tokenizer;

namespace {

template <typename T>
T take(std::string_view& bytes) {
  T value;
  REQUIRE(bytes.size() >= sizeof(T));
  std::memcpy(&value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return value;
}

template <typename T>
std::vector<T> take_many(std::string_view& bytes, size_t count) {
  std::vector<T> values;
  for (size_t i = 0; i < count; ++i) values.push_back(take<T>(bytes));
  return values;
}

size_t files_in(const std::filesystem::path& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

}  // namespace

TEST_CASE("ids and index are as Megatron-LM reads them") {
  for (const int token_bytes : {2, 4}) {
    const ScratchFolder folder;
    const auto prefix = folder.path() / "tokens";
    TokenWriter writer(prefix, token_bytes, false);
    writer.add(std::vector<int32_t>{1, 2, 65535}, std::vector<int64_t>{2, 1});
    writer.add(std::vector<int32_t>{4, 5}, std::vector<int64_t>{2});
    CHECK(files_in(folder.path()) == 1);  // under another name
    writer.finish();
    CHECK(files_in(folder.path()) == 2);
    CHECK(writer.documents() == 3);
    CHECK(writer.tokens() == 5);

    const std::string ids = read_file(prefix.string() + ".bin"), index = read_file(prefix.string() + ".idx");
    std::string_view rest = ids;
    if (token_bytes == 2) {
      CHECK(take_many<uint16_t>(rest, 5) == std::vector<uint16_t>{1, 2, 65535, 4, 5});
    } else {
      CHECK(take_many<int32_t>(rest, 5) == std::vector<int32_t>{1, 2, 65535, 4, 5});
    }
    CHECK(rest.empty());

    rest = index;
    CHECK(rest.substr(0, 9) == std::string_view("MMIDIDX\0\0", 9));
    rest.remove_prefix(9);
    CHECK(take<uint64_t>(rest) == 1);
    CHECK(take<uint8_t>(rest) == (token_bytes == 2 ? 8 : 4));
    CHECK(take<uint64_t>(rest) == 3);
    CHECK(take<uint64_t>(rest) == 4);
    CHECK(take_many<int32_t>(rest, 3) == std::vector<int32_t>{2, 1, 2});
    CHECK(take_many<int64_t>(rest, 3) == std::vector<int64_t>{0, 2 * token_bytes, 3 * token_bytes});
    CHECK(take_many<int64_t>(rest, 4) == std::vector<int64_t>{0, 1, 2, 3});
    CHECK(rest.empty());
  }
}

TEST_CASE("prompts have a file of their own, which an overwriting writer without any removes") {
  const ScratchFolder folder;
  const auto prefix = folder.path() / "tokens";
  TokenWriter writer(prefix, 2, false);
  writer.add(std::vector<int32_t>{1, 2, 3}, std::vector<int64_t>{2, 1},
             std::vector<tokens::TokenRange>{{0, 1}});
  writer.add(std::vector<int32_t>{4, 5}, std::vector<int64_t>{2}, std::vector<tokens::TokenRange>{{1, 2}});
  writer.finish();
  const std::string prompts = read_file(prefix.string() + ".prompts");
  std::string_view rest = prompts;
  CHECK(rest.substr(0, 8) == std::string_view("PROMPTS\2", 8));
  rest.remove_prefix(8);
  CHECK(take<uint64_t>(rest) == 2);
  CHECK(take_many<int64_t>(rest, 4) == std::vector<int64_t>{0, 1, 4, 5});  // of the whole file
  CHECK(rest.empty());
  TokenWriter without(prefix, 2, true);
  without.add(std::vector<int32_t>{1}, std::vector<int64_t>{1});
  without.finish();
  CHECK(files_in(folder.path()) == 2);
}

TEST_CASE("a file that is there is kept, unless it may be overwritten") {
  const ScratchFolder folder;
  const auto prefix = folder.path() / "tokens";
  std::ofstream(prefix.string() + ".idx") << "old";
  CHECK_THROWS_AS(TokenWriter(prefix, 2, false), UsageError);
  CHECK_THROWS_WITH(TokenWriter(prefix, 2, false), test::contains_text("tokens.idx is there already"));
  { TokenWriter abandoned(prefix, 2, true); }
  CHECK(files_in(folder.path()) == 1);
  CHECK(read_file(prefix.string() + ".idx") == "old");
  TokenWriter writer(prefix, 2, true);
  writer.finish();
  CHECK(read_file(prefix.string() + ".idx").size() == 42);
  CHECK_THROWS_WITH(TokenWriter(folder.path() / "no/where", 2, false), test::contains_text("no/where.bin"));
}
