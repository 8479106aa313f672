#include "parallel/comm/tcp/tcp_handshake.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "core/base/error.h"
#include "parallel/comm/bootstrap.h"
#include "test/support/catch.h"

namespace pptrain::comm {
namespace {

using pptrain::test::contains_text;
using Bytes = std::vector<uint8_t>;

RunIdentity identity(int rank, int size = 4, const std::string& key = "the key of this run",
                     const std::string& run = "run 1") {
  return {.key = key, .run = run, .rank = rank, .size = size};
}

// Lets the two sides talk until both are done. `change` may alter message number n before it arrives.
template <typename Change>
void talk(Handshake& caller, Handshake& called, Change&& change) {
  Bytes message = caller.opening();
  for (int n = 0; !caller.done() || !called.done(); ++n) {
    change(n, message);
    message = (n % 2 == 0 ? called : caller).take(message);
  }
}

void talk(Handshake& caller, Handshake& called) {
  talk(caller, called, [](int, Bytes&) {});
}

void require_refusal(const RunIdentity& caller_is, int calls, const RunIdentity& called_is,
                     const std::string& reason) {
  Handshake caller = Handshake::calling(caller_is, calls);
  Handshake called = Handshake::called(called_is);
  REQUIRE_THROWS_WITH(talk(caller, called), contains_text(reason));
  REQUIRE_FALSE((caller.done() && called.done()));
}

TEST_CASE("HMAC-SHA256 gives the digests of RFC 4231") {
  const auto bytes = [](std::string_view text) {
    return std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  };
  REQUIRE(to_hex(hmac("Jefe", {bytes("what do ya want "), bytes("for nothing?")})) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  REQUIRE(to_hex(hmac(std::string(20, '\x0b'), {bytes("Hi There")})) ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

TEST_CASE("two ranks with one key come to know each other") {
  const bool upwards = GENERATE(false, true);
  const int low = 1, high = 3;
  Handshake caller = Handshake::calling(identity(upwards ? low : high), upwards ? high : low);
  Handshake called = Handshake::called(identity(upwards ? high : low));
  talk(caller, called);
  REQUIRE(caller.peer() == (upwards ? high : low));
  REQUIRE(called.peer() == (upwards ? low : high));
  REQUIRE(caller.wanted() + called.wanted() == 0);
}

TEST_CASE("what differs between two ranks is said, and the called side tells a stranger nothing") {
  require_refusal(identity(3, 4, "another key, as long"), 1, identity(1), "PPTRAIN_SECRET");
  require_refusal(identity(3, 4, "the key of this run", "run 2"), 1, identity(1), "does not know the key");
  require_refusal(identity(3, 5), 1, identity(1), "rank 3 of 5, but this run has 4 ranks");
  require_refusal(identity(3), 2, identity(1), "rank 1 where rank 2 was called");
  require_refusal(identity(1), 1, identity(1), "does not call rank 1");
  require_refusal(identity(4), 1, identity(1), "does not call rank 1");
  Handshake called = Handshake::called(identity(1));
  const Bytes answer = called.take(Handshake::calling(identity(3, 4, "guess"), 1).opening());
  REQUIRE(answer.size() == Handshake::hello_bytes);  // random, without a proof
  REQUIRE_THROWS_AS(called.take(Bytes(Handshake::proof_bytes, 7)), Error);
}

TEST_CASE("a handshake that was listened to is of no use again, nor is one's own echo") {
  Handshake caller = Handshake::calling(identity(3), 1);
  Handshake called = Handshake::called(identity(1));
  std::vector<Bytes> heard;
  talk(caller, called, [&](int, const Bytes& message) { heard.push_back(message); });
  Handshake next = Handshake::called(identity(1));
  next.take(heard[0]);
  REQUIRE_THROWS_AS(next.take(heard[2]), Error);
  // Reflection: a caller gets its own messages back.
  Handshake fooled = Handshake::calling(identity(3), 3);
  const Bytes proof = fooled.take(fooled.opening());
  REQUIRE_THROWS_AS(fooled.take(proof), Error);
}

TEST_CASE("no altered handshake is accepted by both sides") {
  std::mt19937_64 random(7);
  int accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    const int victim = static_cast<int>(random() % 4);
    Handshake caller = Handshake::calling(identity(3), 1);
    Handshake called = Handshake::called(identity(1));
    const auto change = [&](int n, Bytes& message) {
      if (n != victim || message.empty()) return;
      switch (random() % 4) {
        case 0:
          message[random() % message.size()] ^= static_cast<uint8_t>(1 << random() % 8);
          break;
        case 1:
          message.resize(random() % message.size());
          break;
        case 2:
          message.push_back(static_cast<uint8_t>(random()));
          break;
        default:
          std::ranges::generate(message, [&] { return static_cast<uint8_t>(random()); });
      }
    };
    try {
      talk(caller, called, change);
      ++accepted;
    } catch (const Error&) {
    }
  }
  REQUIRE(accepted == 0);
}

class Secrets {
 public:
  Secrets() {
    std::string pattern = (std::filesystem::temp_directory_path() / "pptrain_secret_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Secrets() { std::filesystem::remove_all(folder_); }
  Secrets(const Secrets&) = delete;
  Secrets& operator=(const Secrets&) = delete;
  std::string file(const std::string& content) const {
    std::ofstream(folder_ + "/secret") << content;
    return folder_ + "/secret";
  }
  std::string fifo() const {
    mkfifo((folder_ + "/fifo").c_str(), 0600);
    return folder_ + "/fifo";
  }

 private:
  std::string folder_;
};

std::string secret_of(std::map<std::string, std::string> variables) {
  return read_secret([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST_CASE("a secret comes from the environment or from a file, and a weak one is refused") {
  const Secrets files;
  REQUIRE(secret_of({}).empty());
  REQUIRE(secret_of({{"PPTRAIN_SECRET", "0123456789abcdef"}}) == "0123456789abcdef");
  const std::string path = files.file("fedcba9876543210\n");
  REQUIRE(secret_of({{"PPTRAIN_SECRET_FILE", path}}) == "fedcba9876543210");
  REQUIRE_THROWS_WITH(secret_of({{"PPTRAIN_SECRET", "0123456789abcdef"}, {"PPTRAIN_SECRET_FILE", path}}),
                      contains_text("both set"));
  REQUIRE_THROWS_WITH(secret_of({{"PPTRAIN_SECRET", "too short"}}), contains_text("9 bytes can be guessed"));
  REQUIRE_THROWS_WITH(secret_of({{"PPTRAIN_SECRET_FILE", path + ".none"}}), contains_text("No such file"));
  REQUIRE_THROWS_WITH(secret_of({{"PPTRAIN_SECRET_FILE", files.fifo()}}), contains_text("no file"));
  REQUIRE_THROWS_WITH(secret_of({{"PPTRAIN_SECRET_FILE", files.file(std::string(5000, 'x'))}}),
                      contains_text("longer"));
  REQUIRE_THROWS_AS(secret_of({{"PPTRAIN_SECRET_FILE", "/"}}), UsageError);
}

}  // namespace
}  // namespace pptrain::comm
