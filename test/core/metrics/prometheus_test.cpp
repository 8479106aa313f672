// The page for Prometheus and its server, with well-behaved and hostile clients. A real parser reads it in
// test/app/report/look_test.py.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/metrics/prometheus.h"
#include "test/support/catch.h"

using namespace pptrain;

namespace {

// A client of the server on this machine.
class Client {
 public:
  explicit Client(const std::string& url) {
    std::smatch port;
    REQUIRE(std::regex_search(url, port, std::regex(":([0-9]+)/metrics$")));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(port[1].str())));
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    socket_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  }
  // Sends as much as the server accepts.
  void say(const std::string& text) {
    for (size_t done = 0; done < text.size();) {
      const ssize_t count = ::send(socket_.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL);
      if (count <= 0) return;
      done += static_cast<size_t>(count);
    }
  }
  // Receives everything until the server closes.
  std::string hear() {
    std::string text;
    char buffer[4096];
    while (true) {
      pollfd ready{socket_.get(), POLLIN, 0};
      REQUIRE(poll(&ready, 1, 120'000) == 1);
      const ssize_t count = recv(socket_.get(), buffer, sizeof(buffer), 0);
      if (count <= 0) return text;
      text.append(buffer, static_cast<size_t>(count));
    }
  }

 private:
  FileDescriptor socket_;
};

metrics::Listener any_port() {
  return metrics::listen_on(*net::parse_listen_address("0"));
}

std::string get(const std::string& url) {
  Client client(url);
  client.say("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  return client.hear();
}

}  // namespace

TEST_CASE("samples and labels are written as the format asks") {
  metrics::Listener listener = any_port();
  const std::string url = listener.url;
  metrics::RunHeader header;
  header.device = "a\\b\"c\nd\xFFz";
  const auto sink = metrics::make_prometheus_sink(std::move(listener), "r\"1", 9, header, {});
  metrics::StepRecord record{
      .step = 1, .loss = std::numeric_limits<double>::quiet_NaN(), .lr = 0.1, .total_tokens = 3};
  record.grad_norm = -std::numeric_limits<double>::infinity();
  record.bubble = metrics::Bubble{.fill = 1, .steady = 2};
  sink->step(record);
  const std::string page = get(url);
  for (const std::string part :
       {R"(device="a\\b\"c\nd)"
        "\xEF\xBF\xBDz\"",
        R"(
# HELP pptrain_tokens_total Tokens that have a target, of the run so far.
# TYPE pptrain_tokens_total counter
pptrain_tokens_total{run="r\"1"} 3
)",
        R"(
# TYPE pptrain_bubble_part_ratio gauge
pptrain_bubble_part_ratio{run="r\"1",part="fill"} 1
pptrain_bubble_part_ratio{run="r\"1",part="steady"} 2
)",
        R"(pptrain_loss_nats{run="r\"1"} NaN)", R"(pptrain_grad_norm{run="r\"1"} -Inf)",
        R"(pptrain_learning_rate{run="r\"1"} 0.1)"}) {
    CAPTURE(part);
    CHECK(page.find(part) != std::string::npos);
  }
}

TEST_CASE("requests and their answers") {
  const auto status = [](const std::string& request) {
    return metrics::http_response(request, [] { return std::string("page"); }).substr(9, 3);
  };
  CHECK(status("GET /metrics HTTP/1.1\r\n\r\n") == "200");
  CHECK(status("GET /metrics?name[]=a HTTP/1.0\r\nHost: a\r\n\r\n") == "200");
  CHECK(status("GET / HTTP/1.1\r\n\r\n") == "404");
  CHECK(status("GET /metricsx HTTP/1.1\r\n\r\n") == "404");
  CHECK(status("POST /metrics HTTP/1.1\r\n\r\n") == "405");
  CHECK(status("GET /metrics HTTP/2.0\r\n\r\n") == "505");
  for (const char* wrong :
       {"\r\n\r\n", "GET\r\n\r\n", "GET /metrics\r\n\r\n", "GET  HTTP/1.1\r\n\r\n", "a b c\r\n\r\n",
        "GET /met rics HTTP/1.1\r\n\r\n", "\x16\x03\x01 / HTTP/1.1\n\n"}) {
    INFO(wrong);
    CHECK(status(wrong) == "400");
  }
  CHECK(status("GET /metrics HTTP/1.1\r\n" + std::string(metrics::longest_request, 'a')) == "431");
  const auto fails = []() -> std::string { throw Error("no"); };
  CHECK(metrics::http_response("GET /metrics HTTP/1.1\r\n\r\n", fails).substr(9, 3) == "500");
  const std::string head =
      metrics::http_response("HEAD /metrics HTTP/1.1\r\n\r\n", [] { return std::string("page"); });
  CHECK(head.find("Content-Length: 4\r\n") != std::string::npos);
  CHECK(head.ends_with("\r\n\r\n"));
  CHECK_FALSE(metrics::is_whole_request("GET /metrics HTTP/1.1\r\nHost: x\r\n"));
}

TEST_CASE("the page follows the run") {
  metrics::Listener listener = any_port();
  const std::string url = listener.url;
  metrics::RunHeader header;
  header.step = 4;
  header.layout = {{"pp", "2"}, {"data", "secret"}};
  const metrics::StepRecord so_far{.step = 4, .skipped_steps = 1, .total_tokens = 400, .saved_step = 4};
  const auto sink = metrics::make_prometheus_sink(std::move(listener), "runs/a", 9, header, so_far);
  const std::string before = get(url);
  CHECK(before.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"));
  CHECK(before.find("pptrain_tokens_total{run=\"runs/a\"} 400\n") != std::string::npos);
  CHECK(before.find("pptrain_skipped_steps_total{run=\"runs/a\"} 1\n") != std::string::npos);
  CHECK(before.find("pptrain_checkpoint_step{run=\"runs/a\"} 4\n") != std::string::npos);
  CHECK(before.find("secret") == std::string::npos);
  CHECK(before.find("pptrain_loss_nats") == std::string::npos);
  metrics::StepRecord record{.step = 5, .loss = 2.5, .memory_gb = 1.5, .total_tokens = 500};
  record.bubble = metrics::Bubble{.fill = 0.25};
  sink->step(record);
  sink->eval({.step = 5, .loss = 3});
  const std::string after = get(url);
  CHECK(after.find("pptrain_step{run=\"runs/a\"} 5\n") != std::string::npos);
  CHECK(after.find("pptrain_loss_nats{run=\"runs/a\"} 2.5\n") != std::string::npos);
  CHECK(after.find("pptrain_memory_peak_bytes{run=\"runs/a\"} 1500000000\n") != std::string::npos);
  CHECK(after.find("pptrain_bubble_part_ratio{run=\"runs/a\",part=\"fill\"} 0.25\n") != std::string::npos);
  CHECK(after.find("pptrain_eval_loss_nats{run=\"runs/a\"} 3\n") != std::string::npos);
}

TEST_CASE("a port that is taken is a fault of the job") {
  const metrics::Listener listener = any_port();
  std::smatch address;
  REQUIRE(std::regex_search(listener.url, address, std::regex("//(.*)/")));
  CHECK_THROWS_AS(metrics::listen_on(*net::parse_listen_address(address[1].str())), UsageError);
}

TEST_CASE("strangers neither keep the page from others nor the server from its end") {
  metrics::Listener listener = any_port();
  const std::string url = listener.url;
  metrics::RunHeader header;
  header.layout = {{"pp", std::string(1 << 20, 'x')}};  // a page that no socket takes at once
  auto server = metrics::make_prometheus_sink(std::move(listener), "runs/a", 9, header, {});
  std::vector<std::unique_ptr<Client>> silent;
  for (size_t i = 0; i < 3 * 16; ++i) silent.push_back(std::make_unique<Client>(url));
  CHECK(get(url).size() > 1 << 20);  // the server closed the oldest client for it
  Client endless(url);
  endless.say(std::string(1 << 20, 'a'));
  CHECK(endless.hear().substr(0, 12) == "HTTP/1.1 431");
  Client deaf(url);  // asks, but never reads the megabyte
  deaf.say("GET /metrics HTTP/1.1\r\n\r\n");
  Client half(url);
  half.say("GET /metrics HTT");
  CHECK(half.hear().empty());  // its time is over
  Client gone(url);
  gone.say("GET /metrics HTTP/1.1\r\n\r\n");
  Client last(url);
  last.say("G");
  server.reset();
  CHECK(last.hear().empty());
}
