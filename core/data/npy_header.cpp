#include "core/data/npy_header.h"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <charconv>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace pptrain::data {
namespace {

constexpr std::string_view npy_magic("\x93NUMPY", 6);

struct NpyType {
  std::string_view name;
  int bytes;
  bool is_signed;
};
constexpr std::array npy_types{NpyType{"|u1", 1, false}, NpyType{"<u2", 2, false}, NpyType{"<u4", 4, false},
                               NpyType{"<u8", 8, false}, NpyType{"|i1", 1, true},  NpyType{"<i2", 2, true},
                               NpyType{"<i4", 4, true},  NpyType{"<i8", 8, true}};

// The header's text: a Python dictionary of 'descr', 'fortran_order' and 'shape', as NumPy prints it.
class Dictionary {
 public:
  Dictionary(std::string_view text, std::string path) : text_(text), path_(std::move(path)) {}

  void read(NpyHeader& header) {
    bool type = false, order = false, shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = string();
      expect(':');
      bool& seen = key == "descr" ? type : key == "fortran_order" ? order : shape;
      if (seen || (&seen == &shape && key != "shape")) fail(fmt::format("the key '{}'", key));
      seen = true;
      if (key == "descr") {
        read_type(header);
      } else if (key == "fortran_order") {
        read_order();
      } else {
        read_shape(header);
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!type || !order || !shape) fail("not all of descr, fortran_order and shape");
    skip_spaces();
    if (!text_.empty()) fail("text behind the dictionary");
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(
        fmt::format("'{}': its .npy header has {}; expected an array of integers of one dimension, "
                    "little-endian, as numpy.save writes it",
                    path_, what));
  }

 private:
  void skip_spaces() { text_.remove_prefix(std::min(text_.find_first_not_of(" \n"), text_.size())); }
  bool accept(char c) {
    skip_spaces();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  void expect(char c) {
    if (!accept(c)) fail(fmt::format("no '{}' where one belongs", c));
  }
  std::string_view string() {
    expect('\'');
    const size_t end = text_.find('\'');
    if (end == std::string_view::npos) fail("a text without an end");
    const std::string_view value = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return value;
  }
  void read_type(NpyHeader& header) {
    skip_spaces();
    if (text_.empty() || text_.front() != '\'') fail("fields (a structured type)");
    const std::string_view name = string();
    for (const NpyType& type : npy_types) {
      if (type.name != name) continue;
      header.token_bytes = type.bytes;
      header.is_signed = type.is_signed;
      return;
    }
    fail(fmt::format("type '{}'", name));
  }
  void read_order() {
    skip_spaces();
    for (const std::string_view word : {"False", "True"}) {
      if (!text_.starts_with(word)) continue;
      text_.remove_prefix(word.size());
      return;
    }
    fail("a fortran_order that is neither True nor False");
  }
  void read_shape(NpyHeader& header) {
    expect('(');
    skip_spaces();
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), header.count);
    if (error != std::errc() || header.count < 0) fail("no length");
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    expect(',');
    if (!accept(')')) fail("more than one dimension");
  }

  std::string_view text_;
  std::string path_;
};

}  // namespace

bool has_npy_header(const io::RegularFile& file) {
  std::array<char, npy_magic.size()> begin{};
  if (file.size() < begin.size()) return false;
  file.read(0, std::as_writable_bytes(std::span(begin)));
  return std::memcmp(begin.data(), npy_magic.data(), npy_magic.size()) == 0;
}

NpyHeader read_npy_header(const io::MappedFile& file) {
  const std::string path = file.path().string();
  const std::string_view bytes = file.text();
  if (!bytes.starts_with(npy_magic) || bytes.size() < 12)
    throw Error(fmt::format("'{}': no .npy file, which begins with \\x93NUMPY and a version", path));
  const int version = static_cast<unsigned char>(bytes[6]);
  if (version < 1 || version > 3)
    throw Error(fmt::format("'{}': .npy version {}, but only 1 to 3 are known", path, version));
  uint32_t length = 0;
  const size_t length_bytes = version == 1 ? 2 : 4;
  std::memcpy(&length, bytes.data() + 8, length_bytes);
  NpyHeader header{.bytes = 8 + length_bytes + length};
  if (header.bytes > bytes.size())
    throw Error(fmt::format("'{}': ends within its .npy header; it is damaged or incomplete", path));
  Dictionary dictionary(bytes.substr(8 + length_bytes, length), path);
  dictionary.read(header);
  const size_t rest = bytes.size() - header.bytes, each = static_cast<size_t>(header.token_bytes);
  if (rest % each != 0 || rest / each != static_cast<size_t>(header.count)) {
    throw Error(
        fmt::format("'{}': the header promises {} integers of {} bytes, behind it are {} bytes; it is "
                    "damaged or incomplete",
                    path, header.count, header.token_bytes, rest));
  }
  return header;
}

}  // namespace pptrain::data
