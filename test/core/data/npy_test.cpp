#include <cstring>
#include <string>
#include <vector>

#include "core/data/token_dataset.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

// As numpy.save writes it: with padding, so that the array begins at a multiple of 64.
std::string header(const std::string& dictionary, int version = 1) {
  std::string text = dictionary;
  const size_t before = version == 1 ? 10 : 12;
  while ((before + text.size() + 1) % 64 != 0) text += ' ';
  text += '\n';
  std::string bytes("\x93NUMPY", 6);
  bytes += static_cast<char>(version);
  bytes += '\0';
  const auto length = static_cast<uint32_t>(text.size());
  bytes.append(reinterpret_cast<const char*>(&length), version == 1 ? 2 : 4);
  return bytes + text;
}

std::string dictionary(const std::string& type, const std::string& shape) {
  return "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
}

template <typename Id>
std::vector<int64_t> read(const ScratchFolder& folder, const std::string& type, const std::vector<Id>& ids) {
  const auto file =
      write_ids(folder, "a.npy", ids, header(dictionary(type, "(" + std::to_string(ids.size()) + ",)")));
  const TokenDataset dataset({{file}, Format::npy}, 70000);
  std::vector<int64_t> read(static_cast<size_t>(dataset.size()));
  dataset.read(0, read);
  return read;
}

}  // namespace

TEST_CASE("arrays of every type of integer") {
  const ScratchFolder folder;
  CHECK(read<uint8_t>(folder, "|u1", {3, 255}) == std::vector<int64_t>{3, 255});
  CHECK(read<int8_t>(folder, "|i1", {3, 127}) == std::vector<int64_t>{3, 127});
  CHECK(read<uint16_t>(folder, "<u2", {3, 65535}) == std::vector<int64_t>{3, 65535});
  CHECK(read<int16_t>(folder, "<i2", {3, 32767}) == std::vector<int64_t>{3, 32767});
  CHECK(read<uint32_t>(folder, "<u4", {3, 69999}) == std::vector<int64_t>{3, 69999});
  CHECK(read<int32_t>(folder, "<i4", {3, 69999}) == std::vector<int64_t>{3, 69999});
  CHECK(read<uint64_t>(folder, "<u8", {3, 69999}) == std::vector<int64_t>{3, 69999});
  CHECK(read<int64_t>(folder, "<i8", {3, 69999}) == std::vector<int64_t>{3, 69999});
  CHECK_THROWS_WITH(read<int16_t>(folder, "<i2", {3, -2}), contains_text("token 1 has id -2"));
  CHECK_THROWS_WITH(read<uint64_t>(folder, "<u8", {3, ~uint64_t{0}}), contains_text("token 1 has id -1"));
  CHECK_THROWS_WITH(read<int64_t>(folder, "<i8", {70000}), contains_text("token 0 has id 70000"));
}

TEST_CASE("headers that numpy writes, and none other") {
  const ScratchFolder folder;
  const std::string ids("\1\0\2\0", 4);
  const auto open = [&](const std::string& bytes) {
    return TokenDataset({{folder.write("a.npy", bytes)}, Format::npy}, 100).size();
  };
  CHECK(open(header(dictionary("<u2", "(2,)")) + ids) == 2);
  CHECK(open(header(dictionary("<u2", "(2,)"), 2) + ids) == 2);
  CHECK(open(header("{'shape': (2,), 'fortran_order': True, 'descr': '<u2'}", 3) + ids) == 2);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {header(dictionary("<u2", "(2,)")).replace(0, 1, "X") + ids, "no .npy file"},
      {header(dictionary("<u2", "(2,)"), 4) + ids, "version 4"},
      {header(dictionary("<u2", "(2,)")).substr(0, 40), "ends within"},
      {header(dictionary("<u2", "(2,)")) + ids.substr(1), "behind it are 3 bytes"},
      {header(dictionary("<u2", "(3,)")) + ids, "promises 3 integers of 2 bytes"},
      {header(dictionary(">u2", "(2,)")) + ids, "type '>u2'"},
      {header(dictionary("<f4", "(1,)")) + ids, "type '<f4'"},
      {header(dictionary("<u2", "(1, 2)")) + ids, "more than one dimension"},
      {header(dictionary("<u2", "()")) + ids, "no length"},
      {header(dictionary("<u2", "(-2,)")) + ids, "no length"},
      {header("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (2,), }") + ids, "structured type"},
      {header("{'descr': '<u2', 'shape': (2,), }") + ids, "not all of"},
      {header("{'descr': '<u2', 'fortran_order': False, 'shape': (2,), 'more': 1}") + ids, "the key 'more'"},
      {header(dictionary("<u2", "(2,)") + " x") + ids, "text behind"},
  };
  for (const auto& [bytes, words] : bad) CHECK_THROWS_WITH(open(bytes), contains_text(words));
}
