// How two processes prove to each other that they know the key of one run, without telling it: a mutual
// challenge and response (HMAC-SHA256 over both sides' random numbers, ranks, and the run's name). Knows no
// socket: messages go in and out as bytes.
//
//     caller -> called   hello: magic, rank, size, 32 random bytes
//     called -> caller   hello
//     caller -> called   proof: HMAC(key, "calling", run, caller's hello, called's hello)
//     called -> caller   proof: HMAC(key, "called", run, the same)
//
// The caller proves first, so a stranger who calls a rank gets nothing that depends on the key.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pptrain::comm {

// What ranks know and strangers do not: the secret of a user, or the key of one run.
using Digest = std::array<uint8_t, 32>;

// The secret that the user gave to all ranks: the text of PPTRAIN_SECRET, or the content of the file that
// PPTRAIN_SECRET_FILE names, without the line's end; "" if neither is set. `env` gives the value of a
// variable, or null. Throws UsageError if both are set, if the file cannot be read, and for a secret of fewer
// than 16 bytes, which could be guessed.
std::string read_secret(const std::function<const char*(const char*)>& env);

// Random bytes from the system that no one can predict.
Digest random_bytes();

// HMAC-SHA256 (RFC 2104, FIPS 180-4) of `parts`, one after another.
Digest hmac(std::string_view key, std::initializer_list<std::span<const uint8_t>> parts);
// Takes as long for equal digests as for others.
bool equal(std::span<const uint8_t> a, std::span<const uint8_t> b);

std::string to_hex(std::span<const uint8_t> bytes);

// What a rank knows of itself and of its run.
struct RunIdentity {
  std::string key;
  std::string run;  // this run and no other, even with the same key
  int rank = 0;
  int size = 1;
};

class Handshake {
 public:
  static constexpr size_t hello_bytes = 48;
  static constexpr size_t proof_bytes = 32;

  // The side that calls rank `peer`; opening() is the first to be sent.
  static Handshake calling(const RunIdentity& me, int peer) { return {me, peer, /*calls=*/true}; }
  // The side that is called.
  static Handshake called(const RunIdentity& me) { return {me, -1, /*calls=*/false}; }

  std::vector<uint8_t> opening() const { return calls_ ? bytes_of(mine_) : std::vector<uint8_t>(); }
  // The size of the message that must come next; 0 when the other side is known to be rank peer().
  size_t wanted() const;
  // A message of wanted() bytes; gives what is to be sent in return. Throws Error that says what the other
  // side is not; then the connection is of no use.
  std::vector<uint8_t> take(std::span<const uint8_t> message);

  bool done() const;
  bool proved() const;  // this side has sent its proof
  int peer() const { return peer_; }

 private:
  using Hello = std::array<uint8_t, hello_bytes>;
  enum class Stage;

  Handshake(const RunIdentity& me, int peer, bool calls);
  static std::vector<uint8_t> bytes_of(std::span<const uint8_t> bytes) {
    return {bytes.begin(), bytes.end()};
  }
  void check_hello();
  Digest proof(bool of_caller) const;

  RunIdentity me_;
  int peer_;
  bool calls_;
  Stage stage_{};  // hello
  Hello mine_{};
  Hello theirs_{};
};

}  // namespace pptrain::comm
