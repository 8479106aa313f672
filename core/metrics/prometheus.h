// The latest figures of a run as a page that Prometheus fetches: the server of the page, which slow or many
// clients can neither hold up nor fill, and the sink that writes it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/metrics/figures.h"
#include "core/metrics/sinks.h"
#include "core/metrics/step_record.h"
#include "core/net/address.h"
#include "core/net/socket.h"

namespace pptrain::metrics {

// --- What of HTTP/1.1 (RFC 9112) a page of figures needs: one request a connection, no body.

// The longest head of a request that is read, in bytes.
inline constexpr size_t longest_request = 8192;

// Is the head of the request, up to its empty line, there?
bool is_whole_request(std::string_view received);

// The whole response, which ends the connection: 200 with `page()` for GET and HEAD of /metrics (with or
// without a query); 404, 405, 505 for other paths, methods and versions, 400 for what is no request, 431 for
// a head longer than longest_request (whose end need not be there), 500 where page() throws.
std::string http_response(std::string_view received, std::string_view content_type,
                          const std::function<std::string()>& page);

// A socket that has its port; clients wait until a PageServer takes it over.
struct Listener {
  net::Socket socket;
  std::string url;  // of /metrics, with the port that the system chose for 0
};

// Throws UsageError that says what to do.
Listener listen_on(const net::ListenAddress& address);

// Answers GET /metrics, in a thread of its own that takes no signals, until it is destroyed, which waits for
// nobody who is connected. At most `most_connections` at a time: another one ends the oldest. A connection
// lives for `longest_life` at most, whatever it sends or fails to read. Nothing that goes wrong with one is
// an error of the run.
class PageServer {
 public:
  static constexpr size_t most_connections = 16;
  static constexpr std::chrono::seconds longest_life{5};

  // `page` is called by the thread.
  PageServer(Listener listener, std::string_view content_type, std::function<std::string()> page);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  struct Connection {
    net::Socket socket;
    Clock::time_point deadline;
    std::string received{};
    std::string response{};  // "" until the request is there
    size_t sent = 0;
    bool closing = false;  // all is sent: what still comes is thrown away until the other side closes
  };

  void serve();
  bool wait();  // for something to do; false when it is time to end
  void accept_some();
  static bool receive(Connection& connection);  // false: the connection is over
  bool go_on(Connection& connection);           // the same
  static bool send_rest(Connection& connection);

  Listener listener_;
  std::string content_type_;
  std::function<std::string()> page_;
  FileDescriptor stop_;  // an eventfd
  std::list<Connection> connections_;
  Clock::time_point deaf_until_{};  // the system has no room for another connection
  std::thread thread_;              // last: it uses the rest
};

// Prometheus' text format, version 0.0.4.
inline constexpr std::string_view exposition_type = "text/plain; version=0.0.4; charset=utf-8";

using Labels = std::vector<std::pair<std::string, std::string>>;

// One name with its HELP and TYPE, and a sample a line. "pptrain_" is put before the name; the type is
// counter where the name ends with "_total", else gauge.
class Exposition {
 public:
  // `labels` are of every sample.
  explicit Exposition(Labels labels) : labels_(std::move(labels)) {}

  // Figures of one name must follow each other, and come once.
  void add(std::span<const Figure> figures);
  void add(std::string_view name, std::string_view help, double value, const Labels& more = {});

  const std::string& text() const { return text_; }

 private:
  void sample(std::string_view name, double value, const Labels& more);
  void family(std::string_view name, std::string_view help);

  Labels labels_;
  std::string text_, last_;  // last_: the family begun last
};

// As a label's value: backslash, quote and newline escaped; what is no UTF-8 becomes U+FFFD.
std::string label_text(std::string_view value);

// "NaN", "+Inf", "-Inf", or the shortest digits that read back to the value.
std::string sample_text(double value);

// Takes the records; the page is written when somebody asks for it, by the server's thread.
class PrometheusSink : public Sink {
 public:
  // For the run in the folder `dir`, which is to reach `last_step`. so_far: what running_figures needs,
  // before this start's first step.
  PrometheusSink(Listener listener, std::string dir, int64_t last_step, RunHeader header, StepRecord so_far);

  void step(const StepRecord& record) override;
  void eval(const EvalRecord& record) override;

  // What GET /metrics gives.
  std::string page() const;

 private:
  using Clock = std::chrono::steady_clock;

  const std::string dir_;
  const int64_t last_step_;
  const RunHeader header_;
  const StepRecord so_far_;
  const Clock::time_point begin_ = Clock::now();
  mutable std::mutex mutex_;  // of the two that follow
  std::optional<StepRecord> step_;
  std::optional<EvalRecord> eval_;
  PageServer server_;  // last: its thread uses the rest
};

}  // namespace pptrain::metrics
