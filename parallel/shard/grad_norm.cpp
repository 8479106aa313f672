#include "parallel/shard/grad_norm.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "core/base/error.h"

namespace pptrain::shard {

namespace {

double root_of_sum(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return std::sqrt(sum);
}

}  // namespace

GradNorm::GradNorm(comm::Communicator& pipeline, const std::vector<std::string>& names)
    : pipeline_(pipeline) {
  std::string own;
  for (const std::string& name : names) own += name + '\n';
  std::map<std::string, int> owner;
  std::vector<std::vector<std::string>> names_of(pipeline.size());
  for (int rank = 0; rank < pipeline.size(); ++rank) {
    std::istringstream lines(comm::broadcast_string(pipeline, own, rank));
    for (std::string name; std::getline(lines, name);) {
      const auto [at, inserted] = owner.emplace(name, rank);
      if (!inserted) {
        throw Error(
            fmt::format("parameter {} is on pipeline rank {} and on rank {}", name, at->second, rank));
      }
      names_of[rank].push_back(name);
    }
  }
  total_ = owner.size();
  std::map<std::string, size_t> position;
  for (const auto& [name, rank] : owner) position.emplace(name, position.size());
  for (const auto& list : names_of) {
    auto& positions = positions_.emplace_back();
    for (const std::string& name : list) positions.push_back(position.at(name));
  }
}

double GradNorm::operator()(std::span<const double> squared_norms) const {
  const auto& own = positions_[pipeline_.rank()];
  if (squared_norms.size() != own.size())
    throw Error("grad norm: one squared norm per named parameter is needed");
  // Every slot has one owner, so this sum only adds zeros: it is exact.
  std::vector<double> all(total_, 0.0);
  for (size_t i = 0; i < own.size(); ++i) all[own[i]] = squared_norms[i];
  return root_of_sum(comm::all_reduce_sum(pipeline_, all));
}

double GradNorm::of_ranks(const std::vector<std::span<const double>>& squared_norms) const {
  std::vector<double> all(total_, 0.0);
  for (size_t rank = 0; rank < positions_.size(); ++rank) {
    for (size_t i = 0; i < positions_[rank].size(); ++i) all[positions_[rank][i]] = squared_norms[rank][i];
  }
  return root_of_sum(all);
}

}  // namespace pptrain::shard
