#include "core/data/inspect.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/data/documents.h"
#include "core/data/token_dataset.h"
#include "test/core/data/token_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::data;
using pptrain::test::contains_text;

namespace {

constexpr size_t piece = 16 << 10;
constexpr size_t whole_size = 24 * piece;

std::string noise(size_t bytes) {
  std::string text(bytes, '\0');
  uint32_t state = 1;
  for (char& c : text) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return text;
}

std::string fingerprint(const std::filesystem::path& file) {
  return data::fingerprint(std::span(&file, 1));
}

std::string with_byte(std::string text, size_t at) {
  text[at] = static_cast<char>(text[at] + 1);
  return text;
}

}  // namespace

TEST_CASE("places lie in the file, apart, from head to tail") {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{piece}, uint64_t{whole_size},
                              uint64_t{whole_size + 1}, uint64_t{10'000'000'019}, uint64_t{1} << 62}) {
    for (const uint64_t files : {1, 7, 1000}) {
      const std::vector<Place> places = places_of(size, files);
      uint64_t end = 0, bytes = 0;
      for (const Place& place : places) {
        CHECK(place.offset >= end);
        CHECK(place.bytes > 0);
        end = place.offset + place.bytes;
        bytes += place.bytes;
      }
      CHECK(end == size);
      CHECK((size == 0 || places.front().offset == 0));
      CHECK(bytes <= whole_size);
      if (files == 1) CHECK(bytes == std::min<uint64_t>(size, whole_size));
    }
  }
}

TEST_CASE("a fingerprint tells files by length and content, not by name") {
  const ScratchFolder folder;
  const std::string text = noise(whole_size + 100'000);
  const std::string print = fingerprint(folder.write("a", text));
  CHECK(print.size() == 32);
  CHECK(fingerprint(folder.write("b", text)) == print);
  std::set<std::string> prints{print};
  const auto differs = [&](const std::string& other) {
    return prints.insert(fingerprint(folder.write("c", other))).second;
  };
  CHECK(differs(text + text[0]));
  CHECK(differs(text.substr(0, text.size() - 1)));
  CHECK(differs(noise(text.size() + 1).substr(1)));
  // A change at the first and last byte, and at each place in between.
  for (const Place& place : places_of(text.size())) CHECK(differs(with_byte(text, place.offset)));
  CHECK(differs(with_byte(text, text.size() - 1)));
  // In a short file every byte counts.
  const std::string brief = noise(5000);
  std::set<std::string> of_brief;
  for (size_t i = 0; i < brief.size(); i += 7)
    of_brief.insert(fingerprint(folder.write("c", with_byte(brief, i))));
  CHECK(of_brief.size() == (brief.size() + 6) / 7);
  CHECK(fingerprint(folder.write("empty", "")) != fingerprint(folder.write("c", std::string(1, '\0'))));
}

TEST_CASE("a folder's fingerprint is of its files in their order") {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.path() / "data");
  folder.write("data/1.bin", noise(40'000));
  folder.write("data/2.bin", noise(50'000));
  folder.write("data/readme", "counts for nothing");
  const auto print = [&] {
    return fingerprint(token_files({.paths = {folder.path() / "data"}, .format = Format::bin}));
  };
  const std::string first = print();
  folder.write("data/readme", "really");
  CHECK(print() == first);
  std::filesystem::rename(folder.path() / "data/1.bin", folder.path() / "data/3.bin");
  CHECK(print() != first);
  // One byte moves from the end of a file to the beginning of the next.
  const auto cut = [&](size_t at) {
    const std::string all = noise(30'000);
    folder.write("data/2.bin", all.substr(0, at));
    folder.write("data/3.bin", all.substr(at));
    return print();
  };
  CHECK(cut(10'000) != cut(10'001));
}

TEST_CASE("what cannot be read has no fingerprint") {
  const ScratchFolder folder;
  CHECK_THROWS_WITH(fingerprint(folder.path() / "absent"), contains_text("No such file"));
  REQUIRE(::mkfifo((folder.path() / "pipe").c_str(), 0600) == 0);
  CHECK_THROWS_WITH(fingerprint(folder.path() / "pipe"), contains_text("is a pipe"));
}
