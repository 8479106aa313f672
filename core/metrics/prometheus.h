// The latest figures of a run as a page that Prometheus fetches: the server of the page, which slow or many
// clients can neither hold up nor fill, and the sink that writes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/metrics/sinks.h"
#include "core/metrics/step_record.h"
#include "core/net/socket.h"

namespace pptrain::metrics {

// --- What of HTTP/1.1 (RFC 9112) a page of figures needs: one request a connection, no body.

// The longest head of a request that is read, in bytes.
inline constexpr size_t longest_request = 8192;

// Is the head of the request, up to its empty line, there?
bool is_whole_request(std::string_view received);

// The whole response, which ends the connection: 200 with `page()` for GET and HEAD of /metrics (with or
// without a query). Errors: 404, 405, 505 for other paths, methods and versions; 400 for what is no request;
// 431 for a head longer than longest_request (whose end need not be there); 500 if page() throws.
std::string http_response(std::string_view received, const std::function<std::string()>& page);

// A socket that has its port; clients wait until a sink takes it over.
struct Listener {
  net::Socket socket;
  std::string url;  // of /metrics, with the port that the system chose for 0
};

// Throws UsageError that says what to do.
Listener listen_on(const net::Address& address);

// Takes the records; the page is written when a client asks for it, by a thread of its own that takes no
// signals. For the run in the folder `dir`, which is to reach `last_step`. so_far: what running_figures
// needs, before this start's first step.
//
// At most 16 clients are connected at a time: another one ends the oldest. A connection lives for 5 s at
// most, whatever it sends or fails to read, and the sink's end waits for no client. Nothing that goes wrong
// with one is an error of the run.
std::unique_ptr<Sink> make_prometheus_sink(Listener listener, std::string dir, int64_t last_step,
                                           RunHeader header, StepRecord so_far);

}  // namespace pptrain::metrics
