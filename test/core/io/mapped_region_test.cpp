#include "core/io/mapped_file.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/io/files.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::io;
using pptrain::test::contains_text;

namespace {

struct Ended {
  int status = 0;
  std::string errors;  // its standard error
};

// Runs `body` in a child process, which then ends with 0.
Ended in_child(const std::function<void()>& body) {
  std::array<int, 2> pipe{};
  REQUIRE(::pipe(pipe.data()) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(pipe[1], STDERR_FILENO);
    report_file_faults();
    body();
    ::_exit(0);
  }
  ::close(pipe[1]);
  Ended ended;
  std::array<char, 256> text{};
  for (ssize_t count = 0; (count = ::read(pipe[0], text.data(), text.size())) > 0;)
    ended.errors.append(text.data(), static_cast<size_t>(count));
  ::close(pipe[0]);
  ::waitpid(child, &ended.status, 0);
  return ended;
}

// Reads one byte of each page; the compiler cannot remove the reads.
void touch(const MappedFile& file) {
  const volatile std::byte* const bytes = file.bytes().data();
  for (size_t i = 0; i < file.bytes().size(); i += 4096) static_cast<void>(bytes[i]);
}

}  // namespace

TEST_CASE("a file that is cut while it is mapped is named") {
  const ScratchFolder folder;
  const auto whole = folder.write("whole", std::string(1 << 16, 'a'));
  const auto cut = folder.write("cut", std::string(1 << 16, 'a'));
  const auto expect_named = [&](const std::function<void()>& body) {
    std::filesystem::resize_file(cut, 1 << 16);
    const Ended ended = in_child(body);
    REQUIRE(WIFEXITED(ended.status));
    CHECK(WEXITSTATUS(ended.status) == 1);
    CHECK_THAT(ended.errors, contains_text("pptrain: '" + cut.string() + "' can no longer be read"));
  };
  expect_named([&] {
    const MappedFile a(whole), b(cut), c(whole);
    std::filesystem::resize_file(cut, 4096);
    touch(a);
    touch(b);
  });
  SECTION("on a thread, and after moves and other files at its place") {
    expect_named([&] {
      { const MappedFile first(cut), second(whole); }
      std::vector<MappedFile> files;
      for (int i = 0; i < 20; ++i) files.emplace_back(i == 13 ? cut : whole);
      std::filesystem::resize_file(cut, 0);
      std::thread([&] {
        for (const MappedFile& file : files) touch(file);
      }).join();
    });
  }
}

TEST_CASE("a bus error elsewhere ends the process as it would have") {
  const Ended ended = in_child([] {
    ::raise(SIGBUS);
    ::raise(SIGBUS);
  });
  REQUIRE(WIFSIGNALED(ended.status));
  CHECK(WTERMSIG(ended.status) == SIGBUS);
  CHECK_THAT(ended.errors, contains_text("a bus error"));
}

TEST_CASE("a limit on the size of files is an error that names the file") {
  const ScratchFolder folder;
  const auto path = folder.path() / "long";
  const Ended ended = in_child([&] {
    const rlimit limit{.rlim_cur = 1000, .rlim_max = 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      OutputFile file(path);
      const std::vector<std::byte> bytes(4096);
      file.write(bytes);
    } catch (const Error& error) {
      std::fputs(error.what(), stderr);
      ::_exit(7);
    }
  });
  REQUIRE(WIFEXITED(ended.status));
  CHECK(WEXITSTATUS(ended.status) == 7);
  CHECK_THAT(ended.errors, contains_text("cannot write to '" + path.string() + "': File too large"));
}
