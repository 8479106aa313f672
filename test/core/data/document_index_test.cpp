// Megatron's index of documents, made here byte by byte.
#include "core/data/document_index.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/documents.h"
#include "core/data/inspect.h"
#include "core/data/token_dataset.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string index_bytes(uint8_t type, int token_bytes, const std::vector<int32_t>& lengths,
                        const std::vector<int64_t>& documents) {
  std::vector<int64_t> pointers;
  int64_t bytes = 0;
  for (const int32_t length : lengths) {
    pointers.push_back(bytes);
    bytes += int64_t{length} * token_bytes;
  }
  return std::string("MMIDIDX\0\0", 9) + raw<uint64_t>({1}) + raw<uint8_t>({type}) +
         raw<uint64_t>({lengths.size(), documents.size()}) + raw(lengths) + raw(pointers) + raw(documents);
}

const std::vector<uint16_t> ids = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
// Sequences of 3, 2, 0, 4 and 1 tokens. The first document has two of them, the second only the empty one.
const std::string whole = index_bytes(8, 2, {3, 2, 0, 4, 1}, {0, 2, 3, 4, 5});

}  // namespace

TEST_CASE("an index says the type of the tokens and where documents begin") {
  const ScratchFolder folder;
  const auto tokens = write_ids(folder, "data.bin", ids);
  folder.write("data.idx", whole);
  CHECK(index_of(tokens) == folder / "data.idx");
  const DocumentIndex index = read_document_index(folder / "data.idx", 20);
  CHECK(index.token_bytes == 2);
  CHECK(index.starts == std::vector<int64_t>{0, 5, 9, 10});

  const TokenDataset dataset({{tokens}, Format::megatron}, 16);
  REQUIRE(dataset.has_index());
  CHECK(dataset.size() == 10);
  CHECK(document_starts(dataset, std::nullopt) == std::vector<int64_t>{0, 5, 9, 10});
  CHECK(dataset.slice(2, 7).indexed_documents() == std::vector<int64_t>{0, 3, 5});
  CHECK(dataset.slice(5, 9).indexed_documents() == std::vector<int64_t>{0, 4});
  CHECK(dataset.slice(3, 3).indexed_documents() == std::vector<int64_t>{0});
  CHECK_FALSE(TokenDataset({{tokens}, Format::bin, 2}, 16).has_index());
}

TEST_CASE("ids may be uint8, uint16 and int32") {
  const ScratchFolder folder;
  folder.write("a.bin", raw<uint8_t>({1, 2, 255}));
  folder.write("a.idx", index_bytes(1, 1, {3}, {0, 1}));
  folder.write("b.bin", raw<int32_t>({70000, 3}));
  folder.write("b.idx", index_bytes(4, 4, {1, 1}, {0, 1, 2}));
  const TokenDataset both({{folder.path()}, Format::megatron}, 100000);
  std::vector<int64_t> out(5);
  both.read(0, out);
  CHECK(out == std::vector<int64_t>{1, 2, 255, 70000, 3});
  CHECK(both.indexed_documents() == std::vector<int64_t>{0, 3, 4, 5});
  folder.write("b.bin", raw<int32_t>({-1, 3}));
  const TokenDataset negative({{folder / "b.bin"}, Format::megatron}, 100000);
  CHECK_THROWS_WITH(negative.read(0, std::span(out).first(1)), contains_text("has id"));
}

TEST_CASE("an index that is damaged, or of another token file, says where") {
  const ScratchFolder folder;
  const auto refuse = [&](const std::string& bytes, const std::string& why, uint64_t tokens = 20) {
    const auto path = folder.write("x.idx", bytes);
    CHECK_THROWS_WITH(read_document_index(path, tokens), contains_text("x.idx") && contains_text(why));
  };
  refuse("", "0 bytes are too few");
  refuse("PK" + whole.substr(2), "does not begin with MMIDIDX");
  std::string other = whole;
  other[9] = 2;
  refuse(other, "version 2");
  for (const auto& [code, name] : std::vector<std::pair<int, std::string>>{{0, "none"},
                                                                           {2, "int8"},
                                                                           {3, "int16"},
                                                                           {5, "int64"},
                                                                           {6, "float64"},
                                                                           {7, "float32"},
                                                                           {9, "type 9"}}) {
    refuse(index_bytes(static_cast<uint8_t>(code), 2, {10}, {0, 1}), name);
  }
  refuse(whole.substr(0, whole.size() - 1), "promises 5 sequences");
  refuse(whole + "x", "promises 5 sequences");
  std::string huge = whole;
  huge.replace(18, 8, raw<uint64_t>({uint64_t{1} << 61}));
  refuse(huge, "promises");
  refuse(index_bytes(8, 2, {3, -2, 9}, {0, 3}), "sequence 1 has -2 tokens");
  refuse(index_bytes(8, 4, {3, 2}, {0, 2}), "sequence 1 begins at byte 12", 10);
  refuse(whole, "10 tokens (20 bytes), but the token file has 22 bytes", 22);
  refuse(index_bytes(8, 2, {10}, {0, 2}), "document 1 begins with sequence 2, which should be from 0 to 1");
  refuse(index_bytes(8, 2, {5, 5}, {0, 2, 1, 2}), "document 2 begins with sequence 1");
  refuse(index_bytes(8, 2, {5, 5}, {1, 2}), "document 0 begins with sequence 1, which should be 0");
  refuse(index_bytes(8, 2, {5, 5}, {0, 1}), "documents end with sequence 1, but there are 2");
  refuse(index_bytes(8, 2, {5, 5}, {}), "documents end with sequence 0, but there are 2");

  // Another byte may give any result or an Error, but no read outside the file.
  size_t refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      const auto path = folder.write("flip.idx", flipped);
      try {
        const DocumentIndex index = read_document_index(path, 20);
        CHECK(index.starts.back() == 10);
        CHECK(std::ranges::is_sorted(index.starts));
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  CHECK(refused > 300);
}

TEST_CASE("a token file without its index is refused, and the index counts in the fingerprint") {
  const ScratchFolder folder;
  const auto tokens = write_ids(folder, "data.bin", ids);
  const Source source{{tokens}, Format::megatron};
  CHECK_THROWS_WITH(TokenDataset(source, 16), contains_text("data.idx"));
  folder.write("data.idx", whole);
  const std::string before = fingerprint(data_files(source));
  folder.write("data.idx", index_bytes(8, 2, {5, 5}, {0, 1, 2}));
  CHECK(fingerprint(data_files(source)) != before);
  CHECK(fingerprint(token_files(source)) == fingerprint(data_files({{tokens}, Format::bin})));
}

TEST_CASE("documents end behind their last token, and long ones come in slices") {
  const ScratchFolder folder;
  const TokenDataset dataset(
      {{write_ids(folder, "t.bin", std::vector<uint16_t>{9, 1, 2, 9, 3, 4, 5, 6, 7, 9, 8})}, Format::bin, 2},
      16);
  const std::vector<int64_t> starts = document_starts(dataset, 9);
  CHECK(starts == std::vector<int64_t>{0, 1, 4, 10, 11});
  CHECK_THROWS_WITH(document_starts(dataset, std::nullopt), contains_text("data.document_end"));
  const DocumentSlices slices(starts, 3);
  std::vector<DocumentSlice> all;
  for (int64_t i = 0; i < slices.size(); ++i) all.push_back(slices[i]);
  CHECK((all ==
         std::vector<DocumentSlice>{{0, 1, true}, {1, 3, true}, {4, 3, false}, {7, 3, true}, {10, 1, true}}));
  CHECK((DocumentSlice{4, 3, false}).targets() == 3);
  CHECK((DocumentSlice{7, 3, true}).targets() == 2);
  CHECK((DocumentSlice{0, 1, true}).targets() == 0);
}

TEST_CASE("documents are found where the stream is read in parts") {
  const ScratchFolder folder;
  std::vector<uint16_t> stream(140'000, 5);
  for (const int end : {65'534, 65'535, 65'536, 131'071, 139'000}) stream[static_cast<size_t>(end)] = 9;
  const TokenDataset dataset({{write_ids(folder, "t.bin", stream)}, Format::bin, 2}, 16);
  CHECK(document_starts(dataset, 9) ==
        std::vector<int64_t>{0, 65'535, 65'536, 65'537, 131'072, 139'001, 140'000});
}
