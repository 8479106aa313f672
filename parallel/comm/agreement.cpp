#include "parallel/comm/agreement.h"
#include "core/base/text.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

namespace pptrain::comm {
bool agree(Communicator& communicator, const std::string& fault,
           const std::function<void(const std::string&)>& say) {
  Communicator& comm = communicator.host();
  if (!any(comm, !fault.empty())) return true;
  const std::vector<std::string> faults = gather_strings(comm, fault, 0);
  const std::string report = report_faults(faults);
  if (!report.empty()) say(report);  // on rank 0: elsewhere nothing is gathered
  comm.barrier();                    // no rank ends before it is said
  return false;
}

bool agree(Communicator& comm, const std::string& fault) {
  return agree(comm, fault, [](const std::string& report) {
    fmt::print(stderr, "{}\n", printable(report));
    std::fflush(stderr);
  });
}

std::string report_faults(std::span<const std::string> faults) {
  std::vector<std::pair<std::string, std::vector<size_t>>> ranks_of;
  for (size_t rank = 0; rank < faults.size(); ++rank) {
    if (faults[rank].empty() || faults[rank] == said_already) continue;
    auto found = std::ranges::find(ranks_of, faults[rank], [](const auto& entry) { return entry.first; });
    if (found == ranks_of.end()) found = ranks_of.insert(found, {faults[rank], {}});
    found->second.push_back(rank);
  }
  if (ranks_of.size() == 1 && ranks_of.front().second.size() == faults.size()) return ranks_of.front().first;
  std::vector<std::string> lines;
  for (const auto& [fault, ranks] : ranks_of) {
    lines.push_back(
        fmt::format("rank{} {}: {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "), fault));
  }
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace pptrain::comm
