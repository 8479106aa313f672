#include "core/base/host_memory.h"

#include <filesystem>
#include <string>

#include "test/core/base/host_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

TEST_CASE("the memory that a process may use is that of its control groups, where they have less") {
  HostFiles host;
  const auto limit = [&] { return memory_limit(host.root()); };
  const int64_t all = limit();
  REQUIRE(all > int64_t{1} << 20);
  host.write("proc/self/cgroup", "0::/job/step\n");
  REQUIRE(limit() == all);
  host.write("sys/fs/cgroup/job/step/memory.max", "max");
  REQUIRE(limit() == all);
  host.write("sys/fs/cgroup/job/memory.max", "1000000");
  REQUIRE(limit() == 1'000'000);
  host.write("sys/fs/cgroup/memory.max", "900000");
  REQUIRE(limit() == 900'000);
  host.write("proc/self/cgroup", "5:cpu:/other\n4:memory:/old\n0::/\n");
  host.write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "800000");
  REQUIRE(limit() == 800'000);
}

TEST_CASE("available memory is the host's, or what a control group leaves, with files in its page cache") {
  HostFiles host;
  const auto available = [&] { return available_memory(host.root()); };
  REQUIRE_FALSE(available());
  host.write("proc/meminfo",
             "MemTotal:       24000000 kB\nMemFree:  100 kB\nMemAvailable:   2000 kB\nSwapFree: 7 kB");
  REQUIRE(available() == 2'048'000);
  host.write("proc/self/cgroup", "0::/job/step\n");
  host.write("sys/fs/cgroup/job/memory.max", "1000000");
  REQUIRE(available() == 2'048'000);  // the group does not report its use
  host.write("sys/fs/cgroup/job/memory.current", "900000");
  REQUIRE(available() == 100'000);
  host.write("sys/fs/cgroup/job/memory.stat", "anon 500000\ninactive_file 30000\nactive_file 20000\nslab 7");
  REQUIRE(available() == 150'000);
  host.write("sys/fs/cgroup/job/memory.current", "1100000");  // over its limit, as while it is lowered
  REQUIRE(available() == 0);
  host.write("proc/self/cgroup", "4:memory:/old\n");
  host.write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "9223372036854771712");
  host.write("sys/fs/cgroup/memory/old/memory.usage_in_bytes", "900000");
  REQUIRE(available() == 2'048'000);
  host.write("sys/fs/cgroup/memory/old/memory.limit_in_bytes", "1000000");
  host.write("sys/fs/cgroup/memory/old/memory.stat",
             "inactive_file 1\ntotal_inactive_file 5000\ntotal_active_file 0");
  REQUIRE(available() == 105'000);
}

TEST_CASE("available memory of this machine is within its limit") {
  const auto available = available_memory();
  REQUIRE(available);
  REQUIRE(*available > 0);
  REQUIRE(*available <= memory_limit());
}
