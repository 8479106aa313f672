#include "parallel/comm/tcp/tcp_key.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <spdlog/fmt/fmt.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "parallel/comm/tcp/tcp_socket.h"

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
  const Socket file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.open()) refuse_file(path, std::generic_category().message(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) refuse_file(path, "it is no file");
  std::string text(most_bytes + 1, '\0');
  const ssize_t got = read(file.get(), text.data(), text.size());
  if (got < 0) refuse_file(path, std::generic_category().message(errno));
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
    throw Error(fmt::format("the system gives no random bytes: {}", std::generic_category().message(errno)));
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

}  // namespace pptrain::comm
