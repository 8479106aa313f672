#include "parallel/comm/tcp/tcp_handshake.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string_view>

#include "core/base/error.h"

namespace pptrain::comm {
namespace {

// A hello: 8 bytes that say what this is, in which version; rank and size, 4 bytes each, the lowest first; 32
// random ones.
constexpr std::string_view magic = "pptrain\x02";
constexpr size_t rank_at = 8;
constexpr size_t size_at = 12;
constexpr size_t random_at = 16;
static_assert(magic.size() == rank_at && random_at + std::tuple_size_v<Digest> == Handshake::hello_bytes);

void write_number(std::span<uint8_t> to, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(value >> (8 * i));
}

uint32_t read_number(std::span<const uint8_t> from) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(from[i]) << (8 * i);
  return value;
}

std::span<const uint8_t> bytes_of_text(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

Handshake::Handshake(const RunIdentity& me, int peer, bool calls) : me_(me), peer_(peer), calls_(calls) {
  const std::span<uint8_t> hello(mine_);
  std::ranges::copy(magic, hello.begin());
  write_number(hello.subspan(rank_at), static_cast<uint32_t>(me.rank));
  write_number(hello.subspan(size_at), static_cast<uint32_t>(me.size));
  std::ranges::copy(random_bytes(), hello.begin() + random_at);
}

size_t Handshake::wanted() const {
  switch (stage_) {
    case Stage::hello:
      return hello_bytes;
    case Stage::proof:
      return proof_bytes;
    case Stage::done:
      return 0;
  }
  return 0;
}

std::vector<uint8_t> Handshake::take(std::span<const uint8_t> message) {
  if (message.size() != wanted() || done()) throw Error("sent a message of a wrong size");
  if (stage_ == Stage::hello) {
    std::ranges::copy(message, theirs_.begin());
    check_hello();
    stage_ = Stage::proof;
    return calls_ ? bytes_of(proof(/*of_caller=*/true)) : bytes_of(mine_);
  }
  if (!equal(message, proof(/*of_caller=*/!calls_))) {
    throw Error(
        fmt::format("says it is rank {}, but does not know the key of this run: is PPTRAIN_SECRET the "
                    "same on all ranks?",
                    peer_));
  }
  stage_ = Stage::done;
  return calls_ ? std::vector<uint8_t>() : bytes_of(proof(/*of_caller=*/false));
}

void Handshake::check_hello() {
  const std::span<const uint8_t> hello(theirs_);
  if (!std::ranges::equal(hello.first(magic.size()), bytes_of_text(magic))) {
    throw Error("is no pptrain, or one of another version");
  }
  const uint32_t rank = read_number(hello.subspan(rank_at));
  const uint32_t size = read_number(hello.subspan(size_at));
  if (size != static_cast<uint32_t>(me_.size)) {
    throw Error(fmt::format("says it is rank {} of {}, but this run has {} ranks", rank, size, me_.size));
  }
  if (calls_ && rank != static_cast<uint32_t>(peer_)) {
    throw Error(fmt::format("says it is rank {} where rank {} was called", rank, peer_));
  }
  if (!calls_ && (rank == static_cast<uint32_t>(me_.rank) || rank >= size)) {
    throw Error(fmt::format("says it is rank {}, which does not call rank {}", rank, me_.rank));
  }
  peer_ = static_cast<int>(rank);
}

Digest Handshake::proof(bool of_caller) const {
  // Fixed sizes but for the run's name, which comes last: no two inputs look alike.
  return hmac(me_.key, {bytes_of_text(of_caller ? "pptrain calling " : "pptrain called  "),
                        calls_ ? mine_ : theirs_, calls_ ? theirs_ : mine_, bytes_of_text(me_.run)});
}

}  // namespace pptrain::comm
