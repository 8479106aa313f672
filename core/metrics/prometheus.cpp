#include "core/metrics/prometheus.h"

#include <poll.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <exception>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/file_descriptor.h"
#include "core/base/one_line.h"
#include "core/base/seconds_since.h"
#include "core/base/signal_block.h"
#include "core/metrics/figures.h"

namespace pptrain::metrics {

namespace {

constexpr std::string_view plain_text = "text/plain; charset=utf-8";
// Prometheus' text format, version 0.0.4.
constexpr std::string_view exposition = "text/plain; version=0.0.4; charset=utf-8";

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

std::string http_response(std::string_view received, const std::function<std::string()>& page) {
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
    return write({"200 OK", exposition, page()}, with_body);
  } catch (const std::exception&) {
    return write({"500 Internal Server Error", plain_text, "The figures cannot be written.\n"}, with_body);
  }
}

Listener listen_on(const net::Address& address) {
  int error = 0;
  net::Socket socket = net::listen_at(address.host, address.port, error);
  if (!socket.open()) {
    throw UsageError(
        fmt::format("metrics.prometheus: cannot listen on {}: {}. Give another port or address, or port 0 "
                    "for any free one",
                    address.text(), std::system_category().message(error)));
  }
  net::Address actual = address;
  actual.port = net::port_of(socket);
  return {std::move(socket), fmt::format("http://{}/metrics", actual.text())};
}

namespace {

bool would_block() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

// Answers GET /metrics in a thread of its own until it is destroyed (make_prometheus_sink).
class PageServer {
 public:
  static constexpr size_t most_connections = 16;
  static constexpr std::chrono::seconds longest_life{5};

  // `page` is called by the thread.
  PageServer(Listener listener, std::function<std::string()> page);
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
  std::function<std::string()> page_;
  FileDescriptor stop_;  // an eventfd
  std::list<Connection> connections_;
  Clock::time_point deaf_until_{};  // the system has no room for another connection
  std::thread thread_;              // last: it uses the rest
};

PageServer::PageServer(Listener listener, std::function<std::string()> page)
    : listener_(std::move(listener)), page_(std::move(page)), stop_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!stop_.open()) throw Error("metrics.prometheus: the system has no descriptor left for its thread");
  const SignalBlock block;
  thread_ = std::thread([this] { serve(); });
}

PageServer::~PageServer() {
  const uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
}

void PageServer::serve() {
  try {
    while (wait()) {
    }
  } catch (const std::exception& error) {  // out of memory
    spdlog::warn("{} is not answered any more: {}", listener_.url, error.what());
  }
  connections_.clear();
}

bool PageServer::wait() {
  constexpr int forever = -1;
  const bool deaf = Clock::now() < deaf_until_;
  std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {deaf ? -1 : listener_.socket.get(), POLLIN, 0}};
  Clock::time_point next = deaf ? deaf_until_ : Clock::time_point::max();
  for (const Connection& c : connections_) {
    const bool sends = !c.response.empty() && !c.closing;
    polled.push_back({c.socket.get(), static_cast<short>(sends ? POLLOUT : POLLIN), 0});
    next = std::min(next, c.deadline);
  }
  int timeout = forever;
  if (next != Clock::time_point::max()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
    timeout = static_cast<int>(std::max<int64_t>(left, 0));
  }
  if (poll(polled.data(), polled.size(), timeout) < 0 && errno != EINTR) throw Error("poll failed");
  if (polled[0].revents != 0) return false;
  size_t at = 2;
  const Clock::time_point now = Clock::now();
  std::erase_if(connections_, [&](Connection& c) {
    const bool ready = polled[at++].revents != 0;
    return (ready && !go_on(c)) || now >= c.deadline;
  });
  if (polled[1].revents != 0) accept_some();
  return true;
}

void PageServer::accept_some() {
  for (size_t i = 0; i < most_connections; ++i) {
    int error = 0;
    net::Socket socket = net::accept_now(listener_.socket, error);
    if (!socket.open()) {
      const bool no_room = error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
      if (no_room) deaf_until_ = Clock::now() + std::chrono::seconds(1);
      return;
    }
    if (connections_.size() == most_connections) connections_.pop_front();
    connections_.push_back({.socket = std::move(socket), .deadline = Clock::now() + longest_life});
  }
}

// Until the other side has read the response: closing earlier makes the system throw it away if something is
// left unread.
bool PageServer::go_on(Connection& c) {
  if (c.closing || c.response.empty()) {
    if (!receive(c)) return false;
    if (c.closing || (!is_whole_request(c.received) && c.received.size() <= longest_request)) return true;
    c.response = http_response(c.received, page_);
    c.received.clear();
  }
  return send_rest(c);
}

bool PageServer::receive(Connection& c) {
  std::array<char, 4096> buffer;
  const ssize_t count = recv(c.socket.get(), buffer.data(), buffer.size(), 0);
  if (count < 0) return would_block();
  if (count == 0) return false;
  if (!c.closing) c.received.append(buffer.data(), static_cast<size_t>(count));
  return true;
}

bool PageServer::send_rest(Connection& c) {
  while (c.sent < c.response.size()) {
    const ssize_t count =
        send(c.socket.get(), c.response.data() + c.sent, c.response.size() - c.sent, MSG_NOSIGNAL);
    if (count < 0) return would_block();
    c.sent += static_cast<size_t>(count);
  }
  shutdown(c.socket.get(), SHUT_WR);
  c.closing = true;
  return true;
}

// The JSON library's judgement of what is UTF-8.
std::string valid_utf8(std::string_view text) {
  using Json = nlohmann::json;
  const std::string quoted = one_line(Json(text));
  return Json::parse(quoted).get<std::string>();
}

// As a label's value: backslash, quote and newline escaped; what is no UTF-8 becomes U+FFFD.
std::string label_text(std::string_view value) {
  std::string result;
  for (const char c : valid_utf8(value)) {
    if (c == '\n') {
      result += "\\n";
    } else {
      if (c == '\\' || c == '"') result += '\\';
      result += c;
    }
  }
  return result;
}

// "NaN", "+Inf", "-Inf", or the shortest digits that read back to the value.
std::string sample_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}

using Labels = std::vector<std::pair<std::string, std::string>>;

// One name with its HELP and TYPE, and a sample a line. "pptrain_" is put before the name; the type is
// counter if the name ends with "_total", else gauge.
class Exposition {
 public:
  // Every sample has the label `run`.
  explicit Exposition(std::string run) : run_(std::move(run)) {}

  // Figures of one name must follow each other, and come once.
  void add(std::span<const Figure> figures) {
    for (const Figure& figure : figures) {
      Labels more;
      if (!figure.label.empty()) more.emplace_back(figure.label, figure.label_value);
      add(figure.name, figure.help, figure.value * figure.unit, more);
    }
  }

  void add(std::string_view name, std::string_view help, double value, const Labels& more = {}) {
    if (std::exchange(last_, name) != name) {
      text_ += fmt::format("# HELP pptrain_{0} {1}\n# TYPE pptrain_{0} {2}\n", name, help,
                           name.ends_with("_total") ? "counter" : "gauge");
    }
    std::string labels = fmt::format("run=\"{}\"", label_text(run_));
    for (const auto& [label, text] : more) labels += fmt::format(",{}=\"{}\"", label, label_text(text));
    text_ += fmt::format("pptrain_{}{{{}}} {}\n", name, labels, sample_text(value));
  }

  const std::string& text() const { return text_; }

 private:
  std::string run_, text_, last_;  // last_: the name that came last
};

Labels describe(const RunHeader& header) {
  Labels labels = {{"version", header.version},
                   {"host", header.host},
                   {"device", header.device},
                   {"world_size", std::to_string(header.world_size)}};
  for (const auto& [name, value] : header.layout) {
    if (name != "data") labels.emplace_back(name, value);
  }
  return labels;
}

class PrometheusSink final : public Sink {
 public:
  PrometheusSink(Listener listener, std::string dir, int64_t last_step, RunHeader header, StepRecord so_far)
      : dir_(std::move(dir)),
        last_step_(last_step),
        header_(std::move(header)),
        so_far_(std::move(so_far)),
        server_(std::move(listener), [this] { return page(); }) {}

  void step(const StepRecord& record) override {
    const std::lock_guard lock(mutex_);
    step_ = record;
  }
  void eval(const EvalRecord& record) override {
    const std::lock_guard lock(mutex_);
    eval_ = record;
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::string page() const;  // what GET /metrics gives

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

std::string PrometheusSink::page() const {
  std::unique_lock lock(mutex_);
  const std::optional<StepRecord> step = step_;
  const std::optional<EvalRecord> eval = eval_;
  lock.unlock();
  Exposition text(dir_);
  text.add("run_info", "What runs, in labels.", 1, describe(header_));
  text.add("start_time_seconds", "When this start of the run began, since 1970.", unix_seconds(header_.time));
  text.add("uptime_seconds", "Since this start of the run began.", seconds_since(begin_));
  text.add("start_step", "Step that this start goes on from.", static_cast<double>(header_.step));
  text.add("last_step", "Step that the run is to reach.", static_cast<double>(last_step_));
  const StepRecord& known = step ? *step : so_far_;
  text.add("step", "Last step done.", static_cast<double>(known.step));
  text.add(running_figures(known));
  if (step) {
    text.add("step_time_seconds", "When the last step was done, since 1970.", unix_seconds(step->time));
    text.add("step_skipped", "1 where the last step was skipped.", step->skipped ? 1 : 0);
    text.add(step_figures(*step));
  }
  if (eval) {
    text.add("eval_step", "Step of the last evaluation.", static_cast<double>(eval->step));
    text.add(eval_figures(*eval));
  }
  return text.text();
}

}  // namespace

std::unique_ptr<Sink> make_prometheus_sink(Listener listener, std::string dir, int64_t last_step,
                                           RunHeader header, StepRecord so_far) {
  return std::make_unique<PrometheusSink>(std::move(listener), std::move(dir), last_step, std::move(header),
                                          std::move(so_far));
}

}  // namespace pptrain::metrics
