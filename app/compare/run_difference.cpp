#include "app/compare/run_difference.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace {

bool same(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) || (std::isnan(a) && std::isnan(b));
}

std::vector<FigureDifference> differing_figures(const StepColumns& a, size_t i, const StepColumns& b,
                                                size_t j) {
  std::vector<FigureDifference> found;
  const auto compare = [&](const std::string& key, double x, double y) {
    if (!same(x, y)) found.push_back({key, x, y});
  };
  for (const char* key : {"lr", "loss", "grad_norm"}) compare(key, a.series.at(key)[i], b.series.at(key)[j]);
  compare("total_tokens", a.tokens[i], b.tokens[j]);
  return found;
}

std::filesystem::path step_folder(const RunData& run, int64_t step) {
  return run.folder / "checkpoints" / checkpoint::step_folder_name(step);
}

std::vector<TensorDifference> differences_at(const RunData& a, const RunData& b, int64_t step) {
  auto tensors = compare_checkpoints(step_folder(a, step), step_folder(b, step), /*state=*/true);
  std::erase_if(tensors, &TensorDifference::is_equal);
  return tensors;
}

}  // namespace

StepComparison compare_steps(const RunData& a, const RunData& b) {
  StepComparison result;
  const StepColumns& x = a.steps;
  const StepColumns& y = b.steps;
  for (size_t i = 0, j = 0; i < x.size() && j < y.size();) {
    if (x.step[i] != y.step[j]) {
      ++(x.step[i] < y.step[j] ? i : j);
      continue;
    }
    result.to = x.step[i];
    if (result.steps++ == 0) result.from = result.to;
    if (!result.differs) result.figures = differing_figures(x, i, y, j);
    if (!result.differs && !result.figures.empty()) result.differs = result.to;
    ++i, ++j;
  }
  return result;
}

CheckpointSearch search_checkpoints(const RunData& a, const RunData& b) {
  CheckpointSearch result;
  std::ranges::set_intersection(a.kept, b.kept, std::back_inserter(result.common));
  const auto differs = [&](int64_t step) {
    auto tensors = differences_at(a, b, step);
    if (tensors.empty()) return false;
    result.tensors = std::move(tensors);  // the last one found is the earliest of all
    return true;
  };
  const auto first =
      std::ranges::partition_point(result.common, [&](int64_t step) { return !differs(step); });
  if (first != result.common.begin()) result.equal = *std::prev(first);
  if (first != result.common.end()) result.differs = *first;
  return result;
}

std::string origin(const StepComparison& steps, const CheckpointSearch& checkpoints) {
  if (!steps.differs) return "";
  const int64_t step = *steps.differs;
  const auto has = [&](const char* key) {
    return std::ranges::find(steps.figures, key, &FigureDifference::key) != steps.figures.end();
  };
  if (has("lr")) return fmt::format("step {} has two learning rates: the jobs differ", step);
  if (has("total_tokens"))
    return fmt::format("step {} has two numbers of valid tokens: its data differ", step);
  if (checkpoints.equal >= step) {  // an absent one is below any step
    return fmt::format(
        "the figures of step {} differ, the weights after step {} do not: it did not reach them", step,
        *checkpoints.equal);
  }
  if (checkpoints.differs && *checkpoints.differs < step) {
    return fmt::format("up to step {} the figures are equal, but not the weights: an update differs",
                       *checkpoints.differs);
  }
  if (!has("loss"))
    return fmt::format("step {} has one loss and two gradient norms: its backward pass differs", step);
  if (checkpoints.equal == step - 1) {
    return fmt::format("step {} began with equal weights and has two losses: its data or forward pass differ",
                       step);
  }
  return "";
}

}  // namespace pptrain::app
