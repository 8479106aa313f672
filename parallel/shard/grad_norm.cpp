#include "parallel/shard/grad_norm.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "core/base/error.h"

namespace pptrain::shard {

GradNorm::GradNorm(comm::Communicator& pipeline, const std::vector<std::string>& names)
    : pipeline_(pipeline) {
  std::string own;
  for (const std::string& name : names) own += name + '\n';
  std::map<std::string, int> owner;
  for (int rank = 0; rank < pipeline.size(); ++rank) {
    std::istringstream lines(comm::broadcast_string(pipeline, own, rank));
    for (std::string name; std::getline(lines, name);) {
      const auto [at, inserted] = owner.emplace(name, rank);
      if (!inserted) {
        throw Error(
            fmt::format("parameter {} is on pipeline rank {} and on rank {}", name, at->second, rank));
      }
    }
  }
  total_ = owner.size();
  for (const std::string& name : names) {
    position_.push_back(static_cast<size_t>(std::distance(owner.begin(), owner.find(name))));
  }
}

double GradNorm::operator()(std::span<const double> squared_norms) const {
  if (squared_norms.size() != position_.size())
    throw Error("grad norm: one squared norm per named parameter is needed");
  // Every slot has one owner, so this sum only adds zeros: it is exact.
  std::vector<double> all(total_, 0.0);
  for (size_t i = 0; i < position_.size(); ++i) all[position_[i]] = squared_norms[i];
  all = comm::all_reduce_sum(pipeline_, all);
  double sum = 0;
  for (const double value : all) sum += value;
  return std::sqrt(sum);
}

}  // namespace pptrain::shard
