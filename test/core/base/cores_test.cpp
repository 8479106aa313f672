// The processors that a process may use: its affinity, and quotas of hand-made control groups.
#include "core/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>

#include "test/core/base/host_files.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;

TEST_CASE("a thread that is bound to one processor has one core") {
  std::thread([] {
    const Cores before = process_cores();
    REQUIRE_FALSE(before.processors.empty());
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(before.processors.back()), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    const Cores bound = process_cores();
    CHECK(bound.processors == std::vector{before.processors.back()});
    CHECK(bound.of_host == before.of_host);
    CHECK(core_count() == 1);
  }).join();
}

TEST_CASE("a control group's quota bounds the cores, its own or one that holds it") {
  HostFiles host;
  const auto processors = static_cast<int64_t>(process_cores(host.root()).processors.size());
  CHECK(process_cores(host.root()).count() == processors);
  CHECK(std::isinf(process_cores(host.root()).quota));
  host.write("proc/self/cgroup", "0::/job/step\n");
  host.write("sys/fs/cgroup/job/step/cpu.max", "max 100000");
  CHECK(std::isinf(process_cores(host.root()).quota));
  host.write("sys/fs/cgroup/job/cpu.max", "150000 100000");
  CHECK(process_cores(host.root()).quota == 1.5);
  CHECK(process_cores(host.root()).count() == 1);
  CHECK(std::filesystem::path(process_cores(host.root()).group).filename() == "job");
  host.write("sys/fs/cgroup/cpu.max", "50000 100000");  // a container's own view
  CHECK(process_cores(host.root()).quota == 0.5);
  CHECK(process_cores(host.root()).count() == 1);  // at least one
}

TEST_CASE("quotas of the first version of control groups count too") {
  HostFiles host;
  host.write("proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/job\n");
  host.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1");
  host.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  CHECK(std::isinf(process_cores(host.root()).quota));
  host.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "125000");
  CHECK(process_cores(host.root()).quota == 1.25);
}

TEST_CASE("whole cores are those that never wait for a quota") {
  CHECK(Cores{.processors = {0, 1, 2, 3}}.count() == 4);
  CHECK(Cores{.processors = {0, 1, 2, 3}, .quota = 2.9}.count() == 2);
  CHECK(Cores{.processors = {0, 1}, .quota = 8}.count() == 2);
  CHECK(Cores{}.count() == 1);
}

TEST_CASE("the processors near a GPU are those that the system lists") {
  HostFiles host;
  const auto processors = [&](const std::string& list) {
    host.write("sys/bus/pci/devices/0000:3b:00.0/local_cpulist", list);
    return processors_near("0000:3b:00.0", host.root());
  };
  CHECK(processors("0-3,8\n") == std::vector{0, 1, 2, 3, 8});
  CHECK(processors("5\n") == std::vector{5});
  CHECK(processors("").empty());
  CHECK(processors("0-,2").empty());
  CHECK(processors_near("0000:00:00.0", host.root()).empty());
}

TEST_CASE("a thread is bound only if it is not bound yet") {
  std::thread([] {
    const Cores before = process_cores();
    if (std::ssize(before.processors) < std::max<int64_t>(2, before.of_host)) return;  // this test is bound
    CHECK_FALSE(bind_unless_bound({}));
    CHECK(process_cores().processors == before.processors);
    const int last = before.processors.back();
    CHECK(bind_unless_bound({last, last + 1000}));
    CHECK(process_cores().processors == std::vector{last});
    CHECK_FALSE(bind_unless_bound({before.processors.front()}));
    CHECK(process_cores().processors == std::vector{last});
  }).join();
}
