#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/net/socket.h"
#include "test/support/catch.h"
#include "test/support/wait_until.h"

namespace pptrain::net {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using pptrain::test::contains_text;
using pptrain::test::wait_until;

TEST_CASE("the address of this host that others are told is not loopback, and can be listened on") {
  CHECK(is_loopback("127.0.1.1"));
  CHECK(is_loopback("::1"));
  CHECK_FALSE(is_loopback("127.example.org"));
  CHECK(address_towards("127.0.0.1") == "127.0.0.1");
  CHECK(host_address("lo") == "127.0.0.1");
  CHECK(interface_of("127.0.0.1").empty());
  CHECK(interface_of("192.0.2.77").empty());
  CHECK(host_address("127.0.0.1") == "127.0.0.1");
  for (const char* wrong : {"0.0.0.0", "192.0.2.77", "no_such_interface"}) {
    CHECK_THROWS_WITH(host_address(wrong), contains_text("PPTRAIN_HOST_ADDRESS"));
  }
  for (const std::string& address : addresses_for_others()) {
    INFO(address);
    CHECK_FALSE(is_loopback(address));
    CHECK_FALSE(interface_of(address).empty());
    CHECK(can_listen(address));
  }
}

TEST_CASE("a socket that listens everywhere is reached by IPv4, and its port is taken") {
  int error = -1;
  const Socket listener = listen_everywhere(error);
  REQUIRE(listener.open());
  CHECK(error == 0);
  const Socket caller = start_connecting("127.0.0.1", port_of(listener), error);
  REQUIRE(caller.open());
  Socket called;
  CHECK(wait_until([&] { return called.open() || (called = accept_now(listener, error)).open(); }));
  CHECK_FALSE(listen_at("127.0.0.1", port_of(listener), error).open());
  CHECK(error == EADDRINUSE);
  CHECK_FALSE(listen_at("localhost", 0, error).open());  // names are not looked up
  CHECK(error == EADDRNOTAVAIL);
}

}  // namespace
}  // namespace pptrain::net
