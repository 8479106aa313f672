#include "parallel/comm/tcp/tcp_handshake.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <spdlog/fmt/fmt.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/net/socket.h"

namespace pptrain::comm {

namespace {

constexpr size_t least_bytes = 16;
constexpr size_t most_bytes = 4096;
constexpr const char* in_text = "PPTRAIN_SECRET";
constexpr const char* in_file = "PPTRAIN_SECRET_FILE";

[[noreturn]] void refuse_file(const std::string& path, const std::string& reason) {
  throw UsageError(fmt::format("environment variable {} names \"{}\": {}", in_file, path, reason));
}

std::string read_file(const std::string& path) {
  // A pipe must not make the start wait.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open()) refuse_file(path, net::error_text(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse_file(path, "it is no file");
  std::string text(most_bytes + 1, '\0');
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got < 0) refuse_file(path, net::error_text(errno));
  if (static_cast<size_t>(got) > most_bytes) {
    refuse_file(path, fmt::format("it is longer than a secret may be, {} bytes", most_bytes));
  }
  text.resize(static_cast<size_t>(got));
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace

std::string read_secret(const std::function<const char*(const char*)>& env) {
  const auto value = [&](const char* variable) {
    const char* text = env(variable);
    return std::string(text == nullptr ? "" : text);
  };
  const std::string text = value(in_text);
  const std::string path = value(in_file);
  if (text.empty() && path.empty()) return "";
  if (!text.empty() && !path.empty()) {
    throw UsageError(fmt::format("environment variables {} and {} are both set: give one", in_text, in_file));
  }
  const std::string secret = path.empty() ? text : read_file(path);
  if (secret.size() < least_bytes) {
    throw UsageError(fmt::format(
        "environment variable {}: a secret of {} bytes can be guessed; give {} or more, for instance "
        "what `openssl rand -hex 32` prints",
        path.empty() ? in_text : in_file, secret.size(), least_bytes));
  }
  return secret;
}

Digest random_bytes() {
  Digest bytes{};
  // Up to 256 bytes come whole, or not at all.
  if (getentropy(bytes.data(), bytes.size()) != 0) {
    throw Error(fmt::format("the system gives no random bytes: {}", net::error_text(errno)));
  }
  return bytes;
}

Digest hmac(std::string_view key, std::initializer_list<std::span<const uint8_t>> parts) {
  std::vector<uint8_t> message;
  for (const auto& part : parts) message.insert(message.end(), part.begin(), part.end());
  Digest digest{};
  unsigned int size = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), message.data(),
                                   message.size(), digest.data(), &size);
  if (made == nullptr || size != digest.size()) throw Error("OpenSSL cannot compute HMAC-SHA256");
  return digest;
}

bool equal(std::span<const uint8_t> a, std::span<const uint8_t> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

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

enum class Handshake::Stage { hello, proof, done };

Handshake::Handshake(const RunIdentity& me, int peer, bool calls) : me_(me), peer_(peer), calls_(calls) {
  const std::span<uint8_t> hello(mine_);
  std::ranges::copy(magic, hello.begin());
  write_number(hello.subspan(rank_at), static_cast<uint32_t>(me.rank));
  write_number(hello.subspan(size_at), static_cast<uint32_t>(me.size));
  std::ranges::copy(random_bytes(), hello.begin() + random_at);
}

bool Handshake::done() const {
  return stage_ == Stage::done;
}

bool Handshake::proved() const {
  return stage_ == Stage::done || (calls_ && stage_ == Stage::proof);
}

size_t Handshake::wanted() const {
  if (done()) return 0;
  return stage_ == Stage::hello ? hello_bytes : proof_bytes;
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
