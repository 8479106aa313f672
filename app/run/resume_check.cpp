#include "app/run/resume_check.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <string_view>

#include "core/base/error.h"
#include "core/config/differences.h"

namespace pptrain::app {
namespace {

using config::Difference;
using config::Effect;

// The differences by what they decide, in words.
struct Sorted {
  std::vector<std::string> model, data, rest;
};

// "data.path", "data.sources[1].path".
bool is_path(std::string_view option) {
  return option.starts_with("data.") && option.ends_with(".path");
}

Sorted sort(const std::vector<Difference>& differences, bool same_file_known) {
  Sorted sorted;
  for (const Difference& difference : differences) {
    const bool moved = is_path(difference.option) && same_file_known;
    switch (moved ? Effect::course : difference.effect) {
      case Effect::model:
        sorted.model.push_back(config::describe(difference));
        break;
      case Effect::data:
        sorted.data.push_back(config::describe(difference));
        break;
      case Effect::course:
      case Effect::layout:
        sorted.rest.push_back(config::describe(difference));
        break;
      case Effect::none:
        break;
    }
  }
  return sorted;
}

// A product of sizes that a damaged file may make huge.
double samples_per_step(const config::JobConfig& job) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  return number(job.distributed.dp_replicate) * number(job.distributed.dp_shard) *
         number(job.train.grad_accum_steps) * number(job.train.micro_batch_size);
}

Sorted compare(const SavedRun& saved, const config::JobConfig& job, const std::string& data) {
  Sorted sorted;
  const bool known = !saved.data.empty() && !data.empty();
  if (saved.job) {
    sorted = sort(config::differences(*saved.job, job), known);
    const double was = samples_per_step(*saved.job), is = samples_per_step(job);
    if (was != is) sorted.rest.push_back(fmt::format("a step took {:.0f} samples, takes {:.0f}", was, is));
  } else if (saved.seed != job.run.seed) {
    sorted.data.push_back(fmt::format("run.seed was {}, is {}", saved.seed, job.run.seed));
  }
  if (known && saved.data != data) {
    sorted.data.push_back(fmt::format("data.path held other data (fingerprint {}, is {})", saved.data, data));
  }
  return sorted;
}

void refuse_other_model(const SavedRun& saved, const std::vector<std::string>& differences) {
  if (differences.empty()) return;
  throw UsageError(fmt::format(
      "{} is of another model or optimizer: {}. Set what it was, or start a new run in another run.dir.",
      saved.folder.string(), fmt::join(differences, "; ")));
}

void refuse_other_data(const SavedRun& saved, const std::vector<std::string>& differences) {
  throw UsageError(
      fmt::format("{} was trained on other data or in another order: {}. Set what it was; or say what is "
                  "meant: checkpoint.data = "
                  "\"continue\" goes on at sample {} of the new order, checkpoint.data = \"restart\" begins "
                  "with its first "
                  "sample.",
                  saved.folder.string(), fmt::join(differences, "; "), saved.next_sample));
}

// Nothing but the model was decided before; all else begins with the job.
ResumeTerms check_weights_alone(const SavedRun& saved, const config::JobConfig& job) {
  if (saved.job) refuse_other_model(saved, model_differences(*saved.job, job));
  return {
      .new_data = true,
      .next_sample = 0,
      .remarks = {fmt::format("{} holds weights alone: optimizer state, learning rate and data begin anew",
                              saved.folder.string())}};
}

}  // namespace

std::vector<std::string> model_differences(const config::JobConfig& saved, const config::JobConfig& job) {
  std::vector<std::string> found;
  for (const Difference& difference : config::differences(saved, job)) {
    if (difference.effect == Effect::model && difference.option.starts_with("model."))
      found.push_back(config::describe(difference));
  }
  return found;
}

ResumeTerms check_resume(const SavedRun& saved, const config::JobConfig& job, const std::string& data) {
  if (saved.weights_alone) return check_weights_alone(saved, job);
  const Sorted sorted = compare(saved, job, data);
  refuse_other_model(saved, sorted.model);
  ResumeTerms terms{.new_data = !sorted.data.empty(), .next_sample = saved.next_sample, .remarks = {}};
  if (terms.new_data) {
    if (job.checkpoint.data == "same") refuse_other_data(saved, sorted.data);
    if (job.checkpoint.data == "restart") terms.next_sample = 0;
    terms.remarks.push_back(fmt::format("other data or another order than in {}, from sample {} on: {}",
                                        saved.folder.string(), terms.next_sample,
                                        fmt::join(sorted.data, "; ")));
  }
  if (!saved.job) {
    terms.remarks.push_back(
        fmt::format("{} does not say which job saved it: only the seed was compared", saved.folder.string()));
  }
  if (!sorted.rest.empty()) {
    terms.remarks.push_back(fmt::format("the job is not the one that saved {}: {}", saved.folder.string(),
                                        fmt::join(sorted.rest, "; ")));
  }
  return terms;
}

}  // namespace pptrain::app
