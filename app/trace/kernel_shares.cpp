#include "app/trace/kernel_shares.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace pptrain::app {

std::string kernel_shares_json(const kernels::KernelTimes& times, int64_t steps) {
  using Json = nlohmann::ordered_json;
  const auto each = [&](double sum) { return sum / static_cast<double>(std::max<int64_t>(steps, 1)); };
  std::vector<const kernels::KernelTimes::value_type*> sorted;
  for (const auto& entry : times) sorted.push_back(&entry);
  std::ranges::stable_sort(sorted, std::ranges::greater(),
                           [](const auto* entry) { return entry->second.seconds; });
  Json list = Json::array();
  for (const auto* entry : sorted) {
    const auto& [name, product] = entry->first;
    const kernels::KernelTime& time = entry->second;
    Json json{{"kernel", name}};
    if (product) json["product"] = {product->m, product->n, product->k};
    json["calls"] = each(static_cast<double>(time.calls));
    json["seconds"] = each(time.seconds);
    json["flops"] = each(time.cost.product_flops + time.cost.attention_flops);
    json["bytes"] = each(time.cost.bytes);
    list.push_back(json);
  }
  return list.dump();
}

// Texts travel as numbers, a character each: a few KB once a trace.
std::vector<std::string> gather_kernel_shares(comm::Communicator& world, const kernels::KernelTimes& times,
                                              int64_t steps) {
  const std::string mine = kernel_shares_json(times, steps);
  std::vector<std::string> all;
  for (const auto& numbers : comm::gather(world, std::vector<double>(mine.begin(), mine.end()), 0))
    all.emplace_back(numbers.begin(), numbers.end());
  return all;
}

}  // namespace pptrain::app
