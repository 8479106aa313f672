#include "app/train/inspection.h"

#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "app/generate/text_codec.h"
#include "app/train/datasets.h"
#include "core/base/error.h"
#include "core/data/data_loader.h"
#include "core/data/inspect.h"
#include "core/io/is_there.h"
#include "models/hf_loader.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace {

namespace fs = std::filesystem;

using Keys = std::initializer_list<std::string_view>;

// Whether `look` found nothing wrong; what it throws is reported.
bool sound(const config::ReportConflict& report, Keys keys, const std::function<void()>& look) {
  try {
    look();
    return true;
  } catch (const Error& error) {
    report(keys, error.what());
    return false;
  }
}

// The loaders refuse streams that are too short for them. Documents are not looked for here, since that may
// mean to read all of a file: of whole ones any number of tokens is enough.
void check_lengths(const Plan& plan, const config::ReportConflict& report) {
  const config::JobConfig& job = plan.job;
  const data::Split split = open_data(job, plan.model.vocab);
  const data::LoaderOptions options{.seq_len = job.train.seq_len};
  const data::LoaderOptions chosen{.packing = data::parse_packing(job.data.packing),
                                   .lengths = data::parse_lengths(job.data.lengths)};
  sound(report, {"data.path", "train.seq_len", "data.val_fraction"}, [&] {
    if (!chosen.whole_documents()) data::DataLoader(split.train, options, job.data.shuffle, /*seed=*/0);
    if (split.train.size() == 0)
      throw Error(fmt::format("data: '{}' has no tokens for training", split.train.path().string()));
  });
  if (job.eval.interval > 0 && split.validation) {
    sound(report, {"data.val_fraction", "data.val_path", "eval.interval"},
          [&] { data::ValidationLoader(*split.validation, options, job.eval.batches); });
  }
}

bool holds_checkpoint(const fs::path& path) {
  if (io::is_there(path / checkpoint::manifest_name)) return true;
  for (const fs::path& root : {path, path / "checkpoints"}) {
    for (const checkpoint::StepFolder& folder : checkpoint::list_step_folders(root)) {
      if (io::is_there(folder.path / checkpoint::manifest_name)) return true;
    }
  }
  return false;
}

void inspect_resume(const config::JobConfig& job, const config::ReportConflict& report) {
  const std::string& resume = job.checkpoint.resume;
  if (!io::is_there(resume)) return;  // a word; or a path that is not there, which is reported already
  if (holds_checkpoint(resume)) return;
  report({"checkpoint.resume"}, fmt::format("\"{}\" holds no checkpoint: neither a manifest.json nor a "
                                            "folder step_N with one",
                                            resume));
}

}  // namespace

void inspect_data(const Plan& plan, const config::ReportConflict& report) {
  const config::JobConfig& job = plan.job;
  if (!job.data.tokenizer.empty()) sound(report, {"data.tokenizer"}, [&] { make_text_codec(job); });
  const auto inspect = [&](const char* key, const std::string& path) {
    return path.empty() || sound(report, {key, "data.format", "data.dtype"},
                                 [&] { data::inspect(data_source(job, path), plan.model.vocab); });
  };
  const bool train = inspect("data.path", job.data.path);
  const bool validation = inspect("data.val_path", job.data.val_path);
  if (train && validation) check_lengths(plan, report);
}

void inspect_all(const Plan& plan, const config::ReportConflict& report) {
  inspect_data(plan, report);
  if (plan.job.model.init == "hf") {
    sound(report, {"model.hf_dir", "model.init"},
          [&] { models::check_hf_weights(plan.model, plan.job.model.hf_dir); });
  }
  inspect_resume(plan.job, report);
  sound(report, {"run.dir"}, [&] { checkpoint::probe(fs::path(plan.job.run.dir) / "checkpoints"); });
}

}  // namespace pptrain::app
