// Where a server listens, as people write it.
#pragma once

#include <arpa/inet.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pptrain::net {

struct ListenAddress {
  std::string host;  // an IPv4 or IPv6 address in numbers
  bool v6 = false;
  uint16_t port = 0;  // 0: any free one

  // "127.0.0.1:9464", "[::1]:9464".
  std::string text() const { return (v6 ? '[' + host + ']' : host) + ':' + std::to_string(port); }
};

// Of "9464" (this machine alone), "localhost:9464", "0.0.0.0:9464" or "[::1]:9464"; nothing of other texts.
// Names are not looked up: what an address means must not depend on who answers.
inline std::optional<ListenAddress> parse_listen_address(std::string_view text) {
  const size_t colon = text.rfind(':');
  const std::string_view digits = colon == std::string_view::npos ? text : text.substr(colon + 1);
  std::string_view host = colon == std::string_view::npos ? "localhost" : text.substr(0, colon);
  ListenAddress result;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), result.port);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    result.v6 = true;
    host = host.substr(1, host.size() - 2);
  }
  result.host = host == "localhost" && !result.v6 ? "127.0.0.1" : std::string(host);
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  if (inet_pton(result.v6 ? AF_INET6 : AF_INET, result.host.c_str(), bytes.data()) != 1) return std::nullopt;
  return result;
}

}  // namespace pptrain::net
