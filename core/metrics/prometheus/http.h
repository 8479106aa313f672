// What of HTTP/1.1 (RFC 9112) a page of figures needs: one request a connection, no body.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace pptrain::metrics {

// The longest head of a request that is read, in bytes.
inline constexpr size_t longest_request = 8192;

// Is the head of the request, up to its empty line, there?
bool is_whole_request(std::string_view received);

// The whole response, which ends the connection: 200 with `page()` for GET and HEAD of /metrics (with or
// without a query); 404, 405, 505 for other paths, methods and versions, 400 for what is no request, 431 for
// a head longer than longest_request (whose end need not be there), 500 where page() throws.
std::string http_response(std::string_view received, std::string_view content_type,
                          const std::function<std::string()>& page);

}  // namespace pptrain::metrics
