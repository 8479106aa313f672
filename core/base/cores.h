// The processors of this host that this process may use: those that its threads may run on (taskset, mpirun's
// binding, cpusets), and no more of their time than its control groups allow (containers, Slurm, systemd).
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace pptrain {

struct Cores {
  std::vector<int> processors{};                           // that the calling thread may run on, ascending
  double quota = std::numeric_limits<double>::infinity();  // processors' worth of time, of the whole group
  int64_t of_host = 0;                                     // processors of the host, usable or not
  std::string group{};  // folder of the control group that has this quota; "" if none has

  // Whole ones that never wait for a quota; at least 1.
  int64_t count() const;
};

// `root`: where proc and sys lie; tests pass a folder of their own.
Cores process_cores(const std::filesystem::path& root = "/");

// process_cores().count()
int64_t core_count();

// The processors on the side of the host to which a PCI device is connected ("0000:3b:00.0"), ascending;
// empty if the system does not tell.
std::vector<int> processors_near(const std::string& pci_device, const std::filesystem::path& root = "/");

// Lets the calling thread, and those that it starts from then on, run on these processors alone. False, and
// nothing changes, if it is bound already (a launcher has done so), or may run on none of them.
bool bind_unless_bound(const std::vector<int>& processors);

}  // namespace pptrain
