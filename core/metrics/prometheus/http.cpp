#include "core/metrics/prometheus/http.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <exception>

namespace pptrain::metrics {
namespace {

constexpr std::string_view plain_text = "text/plain; charset=utf-8";

struct Response {
  std::string_view status;
  std::string_view type = plain_text;
  std::string body{};
  std::string_view more{};  // further header lines
};

std::string write(const Response& response, bool with_body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Cache-Control: no-store\r\n"
      "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n{}",
      response.status, response.type, response.body.size(), response.more, with_body ? response.body : "");
}

struct RequestLine {
  std::string_view method, path, version;
};

// Empty parts where it is none.
RequestLine parse_line(std::string_view received) {
  const std::string_view line = received.substr(0, received.find_first_of("\r\n"));
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) return {};
  RequestLine result{line.substr(0, first), line.substr(first + 1, last - first - 1), line.substr(last + 1)};
  result.path = result.path.substr(0, result.path.find('?'));
  const auto is_token = [](std::string_view text) {
    return std::ranges::all_of(text, [](unsigned char c) { return c > 0x20 && c < 0x7F; });
  };
  return is_token(result.method) && is_token(result.path) && is_token(result.version) ? result
                                                                                      : RequestLine{};
}

}  // namespace

bool is_whole_request(std::string_view received) {
  return received.find("\r\n\r\n") != std::string_view::npos ||
         received.find("\n\n") != std::string_view::npos;
}

std::string http_response(std::string_view received, std::string_view content_type,
                          const std::function<std::string()>& page) {
  if (received.size() > longest_request)
    return write({"431 Request Header Fields Too Large", plain_text, "The request is too long.\n"});
  const RequestLine line = parse_line(received);
  if (line.method.empty() || !line.path.starts_with('/') || !line.version.starts_with("HTTP/"))
    return write({"400 Bad Request", plain_text, "This is no request of HTTP.\n"});
  if (!line.version.starts_with("HTTP/1."))
    return write({"505 HTTP Version Not Supported", plain_text, "HTTP/1.1 is spoken here.\n"});
  if (line.method != "GET" && line.method != "HEAD")
    return write({"405 Method Not Allowed", plain_text, "Only GET and HEAD.\n", "Allow: GET, HEAD\r\n"});
  const bool with_body = line.method == "GET";
  if (line.path != "/metrics")
    return write({"404 Not Found", plain_text, "pptrain's figures are at /metrics.\n"}, with_body);
  try {
    return write({"200 OK", content_type, page()}, with_body);
  } catch (const std::exception&) {
    return write({"500 Internal Server Error", plain_text, "The figures cannot be written.\n"}, with_body);
  }
}

}  // namespace pptrain::metrics
