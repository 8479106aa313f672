#include "parallel/comm/agreement.h"

#include <ATen/ops/empty.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

namespace pptrain::comm {
namespace {

at::Tensor bytes_of(const std::string& text) {
  const at::Tensor bytes = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

// The texts of all ranks, by rank. Collective.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& mine) {
  const at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<int64_t>() = static_cast<int64_t>(mine.size());
  const at::Tensor lengths = at::empty({comm.size(), 1}, at::kLong);
  comm.all_gather(lengths, length);
  const std::span<const int64_t> counts(lengths.const_data_ptr<int64_t>(), static_cast<size_t>(comm.size()));
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  const at::Tensor all = at::empty({total}, at::kByte);
  comm.iall_gather(all, bytes_of(mine), counts)->wait([] { return "the faults of all ranks"; });
  std::vector<std::string> texts;
  const char* next = total > 0 ? static_cast<const char*>(all.const_data_ptr()) : nullptr;
  for (const int64_t count : counts) {
    texts.emplace_back(count > 0 ? std::string(next, static_cast<size_t>(count)) : "");
    if (count > 0) next += count;
  }
  return texts;
}

}  // namespace

bool agree(Communicator& communicator, const std::string& fault,
           const std::function<void(const std::string&)>& say) {
  Communicator& comm = communicator.host();
  if (!any(comm, !fault.empty())) return true;
  const std::vector<std::string> faults = gather_texts(comm, fault);
  const std::string report = report_faults(faults);
  if (comm.rank() == 0 && !report.empty()) say(report);
  comm.barrier();  // nobody ends before it is said
  return false;
}

bool agree(Communicator& comm, const std::string& fault) {
  return agree(comm, fault, [](const std::string& report) {
    fmt::print(stderr, "{}\n", report);
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
