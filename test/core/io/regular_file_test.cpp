#include "core/io/files.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cstring>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/base/special_file.h"
#include "core/io/mapped_file.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::io;
using pptrain::test::contains_text;

namespace {

std::string read_text(const RegularFile& file, uint64_t offset, size_t count) {
  std::string text(count, '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

TEST_CASE("a regular file is read anywhere") {
  const ScratchFolder folder;
  const RegularFile file(folder.write("a", "hello there"));
  CHECK(file.size() == 11);
  CHECK(read_text(file, 6, 5) == "there");
  CHECK(read_text(file, 11, 0).empty());
  CHECK_THROWS_WITH(read_text(file, 6, 6), contains_text("'" + file.path().string() + "' ends at byte 11"));
}

TEST_CASE("what is no regular file is refused, not waited for") {
  const ScratchFolder folder;
  const std::filesystem::path pipe = folder.path() / "pipe", socket = folder.path() / "socket";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  std::strncpy(address.sun_path, socket.c_str(), sizeof(address.sun_path) - 1);
  const FileDescriptor listener(::socket(AF_UNIX, SOCK_STREAM, 0));
  REQUIRE(::bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
  const std::filesystem::path link = folder.path() / "link";
  std::filesystem::create_symlink(pipe, link);

  const std::array<std::pair<std::filesystem::path, const char*>, 5> cases{{{pipe, "a pipe"},
                                                                            {link, "a pipe"},
                                                                            {socket, "a socket"},
                                                                            {"/dev/zero", "a device"},
                                                                            {folder.path(), "a directory"}}};
  for (const auto& [path, kind] : cases) {
    CHECK(special_file(path) == kind);
    CHECK_THROWS_WITH(RegularFile(path), contains_text("'" + path.string() + "' is " + kind));
    CHECK_THROWS_WITH(MappedFile(path), contains_text("'" + path.string() + "' is " + kind));
  }
  CHECK(special_file(folder.write("a", "")).empty());
  CHECK(special_file(folder.path() / "absent").empty());
  CHECK_THROWS_WITH(RegularFile(folder.path() / "absent"), contains_text("No such file"));
}
