#include "app/data/inspection.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/data/datasets.h"
#include "app/data/targets.h"
#include "app/data/text_codec.h"
#include "core/base/error.h"
#include "core/config/data_sources.h"
#include "core/data/data_loader.h"
#include "core/data/inspect.h"
#include "core/io/paths.h"
#include "core/text/corpus/chat.h"
#include "models/hf_directory.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::app {

namespace {

namespace fs = std::filesystem;

using Keys = std::initializer_list<std::string_view>;

// Did `look` find nothing wrong? Reports what it throws.
bool sound(const config::ReportConflict& report, Keys keys, const std::function<void()>& look) {
  try {
    look();
    return true;
  } catch (const Error& error) {
    report(keys, error.what());
    return false;
  }
}

// The loaders refuse streams that are too short for them. Documents are not searched here, since that may
// mean reading the whole file: for whole documents any number of tokens is enough.
void check_lengths(const Plan& plan, const OpenSource& source, size_t index,
                   const config::ReportConflict& report) {
  const config::JobConfig& job = plan.job;
  const data::LoaderOptions options{.seq_len = job.train.seq_len};
  const data::LoaderOptions chosen{.packing = job.data.packing, .lengths = job.data.lengths};
  const std::string path = config::source_key(job, index, "path");
  const std::string fraction = config::source_key(job, index, "val_fraction");
  sound(report, {path, "train.seq_len", fraction}, [&] {
    if (!chosen.whole_documents()) data::DataLoader(*source.train, options, job.data.shuffle, /*seed=*/0);
    if (source.train->size() == 0)
      throw Error(fmt::format("data: '{}' has no tokens for training", source.train->path()));
  });
  if (source.validation) {
    sound(report, {fraction, config::source_key(job, index, "val_path")},
          [&] { data::ValidationLoader(*source.validation, options, job.eval.batches); });
  }
}

// The first documents of the first and the last file, as training will get them.
void inspect_texts(const config::JobConfig& job, const StreamFiles& stream) {
  const TargetCount count = look_for_targets(job, stream);
  if (count.whole && count.none() && !stream.validation) throw Error(target_text(job, count));
}

// The weights of model.hf_dir know its tokenizer's tokens, but would be trained on bytes.
void check_bytes(const config::JobConfig& job, const config::ReportConflict& report) {
  if (job.model.init != config::Init::hf) return;
  // Names as in transformers. Weights without any of these files may well be trained on bytes.
  const fs::path folder = job.model.hf_dir;
  constexpr const char* names[] = {"tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json",
                                   "vocab.txt"};
  const auto* const name =
      std::ranges::find_if(names, [&](const char* file) { return io::is_there(folder / file); });
  if (name == std::end(names)) return;
  const std::string beside = (folder / *name).string();
  const std::string advice =
      name == names
          ? fmt::format("write data.tokenizer = \"{}\", which makes tokens of the text", beside)
          : fmt::format(
                "'{}' lies beside them, but pptrain reads tokenizer.json alone: let transformers write it "
                "(AutoTokenizer.from_pretrained, save_pretrained), and name it as data.tokenizer",
                beside);
  const std::vector<config::DataSource> sources = config::data_sources(job);
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!config::is_of_bytes(job, sources[i])) continue;
    const std::string path = config::source_key(job, i, "path"),
                      format = config::source_key(job, i, "format");
    report({format, path, "data.sources", "model.init"},
           fmt::format(
               "{} = \"text\" takes each byte for a token, which the weights of model.hf_dir do not know: {}",
               format, advice));
  }
}

// Texts are not tokenized here, so the number of their tokens is not known yet.
bool inspect_stream(const Plan& plan, const StreamFiles& stream, const config::ReportConflict& report) {
  const std::string format = config::source_key(plan.job, stream.source, "format");
  const std::string dtype = config::source_key(plan.job, stream.source, "dtype");
  return sound(report, {stream.key, format, dtype}, [&] {
    if (config::is_tokenized(plan.job, stream.options)) {
      inspect_texts(plan.job, stream);
    } else {
      data::inspect(data_source(stream), plan.model.vocab);
    }
  });
}

// The files of a stream, each under its one name without links.
std::vector<fs::path> files_of(const config::JobConfig& job, const StreamFiles& stream) {
  std::vector<fs::path> files =
      config::is_tokenized(job, stream.options) ? stream.files() : data::token_files(data_source(stream));
  for (fs::path& file : files) file = fs::weakly_canonical(file);
  return files;
}

bool holds_checkpoint(const fs::path& path) {
  if (io::is_there(path / checkpoint::manifest_name)) return true;
  for (const fs::path& root : {path, path / "checkpoints"}) {
    for (const auto& [step, folder] : checkpoint::list_step_folders(root)) {
      if (io::is_there(folder / checkpoint::manifest_name)) return true;
    }
  }
  return false;
}

void inspect_resume(const config::JobConfig& job, const config::ReportConflict& report) {
  const std::string& resume = job.checkpoint.resume;
  if (!io::is_there(resume)) return;  // a word; or a missing path, which is reported already
  if (holds_checkpoint(resume)) return;
  report({"checkpoint.resume"},
         fmt::format("\"{}\" holds no checkpoint: neither a manifest.json nor a folder step_N with one",
                     resume));
}

// Warns if conversations are not written by the model's own chat template, which lies next to the tokenizer.
std::optional<std::string> template_warning(const config::JobConfig& job) {
  const auto has_messages = [](const config::DataSource& source) { return !source.messages_key.empty(); };
  if (!std::ranges::any_of(config::data_sources(job), has_messages)) return std::nullopt;
  const auto difference = corpus::difference_from_own(job.data.chat, tokenizer_of(job));
  if (!difference) return std::nullopt;
  return fmt::format("data.chat{}: {}",
                     job.data.chat.style == config::ChatStyle::custom
                         ? ""
                         : fmt::format(".template = \"{}\"", job.data.chat.style.text),
                     *difference);
}

}  // namespace

void inspect_data(const Plan& plan, const config::ReportConflict& report) {
  const config::JobConfig& job = plan.job;
  check_bytes(job, report);
  if (!job.data.tokenizer.empty() || config::any_of_texts(job))
    sound(report, {"data.tokenizer", "model.hf_dir"}, [&] { make_text_codec(job); });
  bool all_sound = true, any_texts = false;
  for (const StreamFiles& stream : streams_of(job, Wanted::all)) {
    all_sound = inspect_stream(plan, stream, report) && all_sound;
    any_texts = any_texts || config::is_tokenized(job, stream.options);
  }
  if (!all_sound || any_texts) return;
  const std::vector<OpenSource> sources = open_data(job, plan.model.vocab, {}, Wanted::all);
  for (size_t i = 0; i < sources.size(); ++i) check_lengths(plan, sources[i], i, report);
  sound(report, {"data.path", "data.sources"}, [&] { check_targets(job, sources); });
}

std::vector<std::string> data_warnings(const config::JobConfig& job) {
  std::vector<std::string> warnings;
  if (auto warning = template_warning(job)) warnings.push_back(std::move(*warning));
  std::map<fs::path, std::string> trained;  // files, and the key of each
  for (const StreamFiles& stream : streams_of(job, Wanted::all)) {
    const bool texts = config::is_tokenized(job, stream.options);
    if (!texts && data::looks_like_uint32(data_source(stream)))
      warnings.push_back(fmt::format(
          "{0}: every second token is 0, as where ids of uint32 are read as uint16: is it {1} = \"uint32\"?",
          stream.key, config::source_key(job, stream.source, "dtype")));
    if (stream.validation) continue;
    for (const fs::path& file : files_of(job, stream)) trained.emplace(file, stream.key);
  }
  for (const StreamFiles& stream : streams_of(job, Wanted::all)) {
    if (!stream.validation) continue;
    for (const fs::path& file : files_of(job, stream)) {
      const auto found = trained.find(file);
      if (found == trained.end()) continue;
      warnings.push_back(fmt::format("{} has \"{}\", which {} has too: what is validated on is trained on",
                                     stream.key, file.string(), found->second));
      break;
    }
  }
  return warnings;
}

std::vector<std::string> target_warnings(const config::JobConfig& job) {
  std::vector<std::string> warnings;
  for (const StreamFiles& stream : streams_of(job, Wanted::all)) {
    if (!config::is_tokenized(job, stream.options)) continue;
    const std::string text = target_text(job, look_for_targets(job, stream));
    if (!text.empty()) warnings.push_back(fmt::format("{}: {}", stream.key, text));
  }
  return warnings;
}

std::vector<std::string> model_warnings(const Plan& plan) {
  std::vector<std::string> warnings = models::export_warnings(plan.model);
  if (plan.job.model.init == config::Init::hf) {
    const models::HfDirectory directory(plan.model, plan.job.model.hf_dir);
    std::ranges::copy(directory.warnings(), std::back_inserter(warnings));
  }
  return warnings;
}

void inspect_all(const Plan& plan, const config::ReportConflict& report) {
  inspect_data(plan, report);
  if (plan.job.model.init == config::Init::hf) {
    sound(report, {"model.hf_dir", "model.init"},
          [&] { models::HfDirectory(plan.model, plan.job.model.hf_dir).find_all(); });
  }
  inspect_resume(plan.job, report);
  sound(report, {"run.dir"}, [&] { checkpoint::probe(fs::path(plan.job.run.dir) / "checkpoints"); });
}

}  // namespace pptrain::app
