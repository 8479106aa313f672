#include "app/convert/to_hf.h"

#include <c10/util/accumulate.h>
#include <spdlog/fmt/fmt.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "app/convert/hf_companions.h"
#include "app/convert/parameter_source.h"
#include "app/convert/rewrite_hf.h"
#include "app/convert/target_folder.h"
#include "app/data/text_codec.h"
#include "app/run/start_choice.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/paths.h"
#include "models/flops.h"
#include "models/hf_writer.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;
using checkpoint::model_file;

// The job that saved the checkpoint, its model's sizes filled in.
config::JobConfig saved_job(const fs::path& step_folder) {
  SavedRun saved = read_saved_run(step_folder);
  if (!saved.job) {
    throw UsageError(fmt::format("{} does not say which job saved it, and so not what its model is",
                                 step_folder.string()));
  }
  config::JobConfig job = *std::move(saved.job);
  models::finish_model(job.model, job.train.seq_len,
                       [&](std::initializer_list<std::string_view> options, const std::string& text) {
                         throw UsageError(fmt::format("the job that saved {}: {}: {}", step_folder.string(),
                                                      *options.begin(), text));
                       });
  return job;
}

class Export {
 public:
  Export(const fs::path& step_folder, const HfOptions& options, const fs::path& folder)
      : step_folder_(step_folder),
        folder_(folder),
        options_(options),
        job_(saved_job(step_folder)),
        type_(options.dtype.value_or(at::kFloat)),
        source_(step_folder),
        tensors_(models::hf_tensors(models::make_model_config(job_.model, 1))) {
    check_parameters();
  }

  Conversion run() {
    write_companions();
    const size_t files = write_weights();
    done_.written = fmt::format("{} of {:.2f} M parameters at step {}, in {} file{} of {}", job_.model.arch,
                                static_cast<double>(elements_) / 1e6, source_.reader().state().step, files,
                                files == 1 ? "" : "s", io::dtype_name(type_));
    return std::move(done_);
  }

 private:
  void check_parameters();
  void write_companions();
  size_t write_weights();
  void write_shard(const std::string& name, std::span<const size_t> numbers);
  io::TensorSpec spec_of(const models::HfTensor& tensor) const { return {tensor.name, type_, tensor.shape}; }

  fs::path step_folder_, folder_;
  const HfOptions& options_;
  config::JobConfig job_;
  at::ScalarType type_;
  ParameterSource source_;
  std::vector<models::HfTensor> tensors_;
  int64_t elements_ = 0;
  Conversion done_;
};

void Export::check_parameters() {
  const checkpoint::Reader& reader = source_.reader();
  for (const models::HfTensor& tensor : tensors_) {
    const auto& shape = reader.global_shape(model_file, tensor.parameter);
    if (shape != tensor.shape) {
      throw Error(fmt::format("{}: {} is [{}], but [{}] in the model of the job that saved it",
                              step_folder_.string(), tensor.parameter, fmt::join(shape, ", "),
                              fmt::join(tensor.shape, ", ")));
    }
    elements_ += c10::multiply_integers(shape);
  }
  if (const size_t stored = reader.names(model_file).size(); stored != tensors_.size()) {
    throw Error(fmt::format("{} holds {} parameters, but the model of the job that saved it has {}",
                            step_folder_.string(), stored, tensors_.size()));
  }
}

// The tokenizer named on the command line, or that of the directory that the checkpoint was made of. A path
// in the checkpoint is not followed: whoever wrote it could name any file here, and the output is made to be
// published.
void Export::write_companions() {
  const fs::path carried = step_folder_ / carried_files;
  if (!options_.tokenizer.empty()) {
    copy_tokenizer(options_.tokenizer, folder_, "--tokenizer");
  } else if (io::is_there(carried / "tokenizer.json")) {
    for (const std::string& name : tokenizer_files())
      if (io::is_there(carried / name))
        io::inner_path(step_folder_,
                       fmt::format("{}/{}", carried_files, name));  // no link out of the checkpoint
    copy_tokenizer(carried, folder_, step_folder_.string());
  } else {
    const fs::path named = tokenizer_of(job_);
    done_.notes.push_back(
        "no tokenizer is written: " +
        (named.empty() ? std::string("the job names none; --tokenizer PATH adds one")
                       : fmt::format("--tokenizer {} adds the one that the job names", named.string())));
  }
  const models::TextEnds ends = read_text_ends(folder_, job_.model, done_.notes);
  write_generation_config(ends, folder_);
  io::write_file_atomically(folder_ / "config.json",
                            models::hf_config(job_.model, type_, ends).dump(2) + "\n");
}

size_t Export::write_weights() {
  std::vector<uint64_t> bytes;
  for (const models::HfTensor& tensor : tensors_)
    bytes.push_back(static_cast<uint64_t>(c10::multiply_integers(tensor.shape)) * c10::elementSize(type_));
  const auto shards = plan_shards(bytes, options_.max_shard_bytes.value_or(default_shard_bytes));
  std::map<std::string, std::string> file_of;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const std::string name = shard_name(shard, shards.size());
    write_shard(name, shards[shard]);
    for (const size_t number : shards[shard]) file_of[tensors_[number].name] = name;
  }
  if (shards.size() > 1) {
    const uint64_t total = static_cast<uint64_t>(elements_) * c10::elementSize(type_);
    io::write_file_atomically(folder_ / "model.safetensors.index.json", index_text(file_of, total));
  }
  return shards.size();
}

void Export::write_shard(const std::string& name, std::span<const size_t> numbers) {
  std::vector<io::TensorSpec> specs;
  for (const size_t number : numbers) specs.push_back(spec_of(tensors_[number]));
  io::SafetensorsWriter file(folder_ / name, specs, {{"format", "pt"}});
  for (const size_t number : numbers) {
    const models::HfTensor& tensor = tensors_[number];
    const std::string what = fmt::format("'{}': the parameter '{}'", step_folder_.string(), tensor.parameter);
    file.write_pieces(tensor.name, source_.fill(spec_of(tensor), {tensor.parameter}, what));
  }
  file.finish();
}

}  // namespace

Conversion to_hf(const fs::path& step_folder, const HfOptions& options, const fs::path& folder) {
  for (const checkpoint::Attachment& carried : checkpoint::read_manifest(step_folder).attachments)
    checkpoint::check_attachment(step_folder, carried);
  const bool as_it_was = !options.dtype && !options.max_shard_bytes && options.tokenizer.empty();
  if (as_it_was && io::is_there(step_folder / carried_headers)) return rewrite_hf(step_folder, folder);
  return Export(step_folder, options, folder).run();
}

}  // namespace pptrain::app
