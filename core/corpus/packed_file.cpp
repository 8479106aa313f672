#include "core/corpus/packed_file.h"

#include <spdlog/fmt/fmt.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <span>

#include "core/base/error.h"
#include "core/io/mapped_file.h"

namespace pptrain::corpus {
namespace {

// What both kinds share: the packed bytes, and the room that they are unpacked into.
class Unpacker : public PackedFile {
 public:
  explicit Unpacker(const std::filesystem::path& path) : file_(path) {}

  bool read(std::string& out, size_t bytes) override {
    const size_t begin = out.size();
    out.resize(begin + bytes);
    size_t made = 0;
    while (made < bytes && (at_ < size() || inside_)) {
      const size_t more = unpack(out.data() + begin + made, bytes - made);
      made += more;
      if (more == 0 && at_ == size() && inside_) fail("it ends within its packed text: it is cut");
    }
    out.resize(begin + made);
    return at_ < size() || inside_;
  }
  uint64_t consumed() const override { return at_; }
  uint64_t size() const override { return file_.bytes().size(); }

 protected:
  // Unpacks from rest() to at most `room` bytes, says how many, and tells advance() what it took.
  virtual size_t unpack(char* to, size_t room) = 0;

  std::span<const std::byte> rest() const { return file_.bytes().subspan(at_); }
  // `inside`: the packed piece goes on.
  void advance(size_t bytes, bool inside) {
    at_ += bytes;
    inside_ = inside;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("'{}': {}", file_.path().string(), what));
  }

 private:
  io::MappedFile file_;
  size_t at_ = 0;
  bool inside_ = false;
};

class GzipFile final : public Unpacker {
 public:
  explicit GzipFile(const std::filesystem::path& path) : Unpacker(path) {
    constexpr int gzip_alone = 16 + MAX_WBITS;
    if (inflateInit2(&stream_, gzip_alone) != Z_OK) fail("gzip cannot begin: out of memory");
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

 private:
  size_t unpack(char* to, size_t room) override {
    constexpr size_t most = size_t{1} << 30;  // zlib counts in 32 bits
    const auto bytes = rest();
    const auto given = static_cast<uInt>(std::min(bytes.size(), most));
    const auto space = static_cast<uInt>(std::min(room, most));
    // zlib does not write to its input.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
    stream_.avail_in = given;
    stream_.next_out = reinterpret_cast<Bytef*>(to);
    stream_.avail_out = space;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      fail(fmt::format("no sound gzip: {}", stream_.msg != nullptr ? stream_.msg : "damaged"));
    size_t taken = given - stream_.avail_in;
    if (result == Z_STREAM_END) {
      inflateReset(&stream_);
      // Zeros behind a piece are padding, as of tapes; gzip -t takes them too.
      while (taken < bytes.size() && bytes[taken] == std::byte{0}) ++taken;
    }
    advance(taken, result != Z_STREAM_END);
    return space - stream_.avail_out;
  }

  z_stream stream_{};
};

class ZstdFile final : public Unpacker {
 public:
  explicit ZstdFile(const std::filesystem::path& path)
      : Unpacker(path), stream_(ZSTD_createDStream(), &ZSTD_freeDStream) {
    if (!stream_) fail("zstd cannot begin: out of memory");
  }

 private:
  size_t unpack(char* to, size_t room) override {
    const auto bytes = rest();
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    ZSTD_outBuffer out{to, room, 0};
    const size_t result = ZSTD_decompressStream(stream_.get(), &out, &in);
    if (ZSTD_isError(result) != 0) fail(fmt::format("no sound zstd: {}", ZSTD_getErrorName(result)));
    advance(in.pos, result != 0);
    return out.pos;
  }

  std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream_;
};

}  // namespace

bool is_packed(const std::filesystem::path& file) {
  return file.extension() == ".gz" || file.extension() == ".zst";
}

std::unique_ptr<PackedFile> open_packed(const std::filesystem::path& file) {
  if (file.extension() == ".gz") return std::make_unique<GzipFile>(file);
  return std::make_unique<ZstdFile>(file);
}

}  // namespace pptrain::corpus
