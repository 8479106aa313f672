// Converts a checkpoint to a Hugging Face directory.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/convert/convert.h"
#include "app/convert/element_types.h"
#include "app/convert/hf_companions.h"
#include "app/convert/merged_parameters.h"
#include "app/convert/stored_weights.h"
#include "app/convert/target_folder.h"
#include "app/run/base_weights.h"
#include "app/run/start_choice.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/files.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/io/safetensors.h"
#include "models/flops.h"
#include "models/hf_config.h"
#include "models/hf_directory.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "models/weight_map.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;

// The parameters of a checkpoint of any layout, as the bytes of Hugging Face's tensors.
class ParameterSource {
 public:
  // Throws as StoredWeights does. average: of the weights, in their place.
  explicit ParameterSource(const fs::path& step_folder, bool average = false)
      : stored_(step_folder, average) {}

  const StoredWeights& stored() const { return stored_; }
  // From now on the parameters are those of the whole model of `job`, which saved the checkpoint.
  void merge(const config::JobConfig& job, const fs::path& step_folder) {
    merged_.emplace(stored_, job, step_folder);
  }
  bool merges() const { return merged_.has_value(); }
  // Throws Error if there is no such parameter.
  const std::vector<int64_t>& shape(const std::string& parameter) const {
    return merged_ ? merged_->shape(parameter) : stored_.shape(parameter);
  }

  // Fills the tensor `spec` of a file with its parts, which ascend and together are all of it, rounded to its
  // type. If asked in order, it reads each part once, and holds one at a time; all of the tensor if parts
  // interleave. `what` begins its errors. Throws Error if the checkpoint's sizes do not fit.
  io::SafetensorsWriter::Fill fill(const io::TensorSpec& spec, std::vector<models::HfWeight> parts,
                                   std::string what);

 private:
  // Elements [begin, end) of a tensor, which these parts fill.
  struct WeightRange {
    uint64_t begin = 0, end = 0;
    std::vector<models::HfWeight> parts;
  };
  static std::vector<WeightRange> ranges(std::vector<models::HfWeight> parts, uint64_t elements);
  void read(const models::HfWeight& part);
  void read(const std::string& parameter, at::Tensor& values);
  std::span<const float> values(const WeightRange& range);  // valid until the next call

  StoredWeights stored_;
  std::optional<MergedParameters> merged_;
  std::string held_;
  at::Tensor values_;
};

std::vector<ParameterSource::WeightRange> ParameterSource::ranges(std::vector<models::HfWeight> parts,
                                                                  uint64_t elements) {
  if (!std::ranges::all_of(parts, &models::HfWeight::is_contiguous)) return {{0, elements, std::move(parts)}};
  std::vector<WeightRange> result;
  for (models::HfWeight& part : parts) {
    const auto begin = static_cast<uint64_t>(part.first);
    const auto count = static_cast<uint64_t>(c10::multiply_integers(part.shape));
    result.push_back({begin, begin + count, {std::move(part)}});
  }
  return result;
}

std::span<const float> ParameterSource::values(const WeightRange& range) {
  const std::string key = range.parts.front().tensor + ' ' + range.parts.front().parameter;
  if (held_ != key) {
    held_.clear();
    values_.reset();  // frees memory for the next one
    values_ = at::empty({static_cast<int64_t>(range.end - range.begin)}, at::kFloat);
    for (models::HfWeight part : range.parts) {
      part.first -= static_cast<int64_t>(range.begin);
      read(part);
    }
    held_ = key;
  }
  return {values_.const_data_ptr<float>(), static_cast<size_t>(values_.numel())};
}

void ParameterSource::read(const std::string& parameter, at::Tensor& values) {
  if (merged_) {
    values.copy_(merged_->values(parameter));
  } else {
    stored_.read(parameter, values);
  }
}

// Reads the part into its place in values_.
void ParameterSource::read(const models::HfWeight& part) {
  const at::Tensor place = part.view_of(values_);
  if (part.is_contiguous()) {
    at::Tensor whole = place.view(part.shape);
    read(part.parameter, whole);
    return;
  }
  at::Tensor whole = at::empty(part.shape, at::kFloat);
  read(part.parameter, whole);
  place.copy_(whole.view(place.sizes()));
}

io::SafetensorsWriter::Fill ParameterSource::fill(const io::TensorSpec& spec,
                                                  std::vector<models::HfWeight> parts, std::string what) {
  const auto elements = static_cast<uint64_t>(c10::multiply_integers(spec.shape));
  uint64_t there = 0;
  for (const models::HfWeight& part : parts) {
    const auto& shape = this->shape(part.parameter);
    there += static_cast<uint64_t>(c10::multiply_integers(shape));
    if (shape != part.shape) there = 0;
  }
  if (there != elements) {
    throw Error(fmt::format("{} has {} elements, but {} of the checkpoint{} fit it", what, elements,
                            parts.front().parameter,
                            parts.size() > 1 ? " and those that it shares it with do not" : " does not"));
  }
  return [this, all = ranges(std::move(parts), elements), type = spec.dtype, what = std::move(what)](
             uint64_t begin, std::span<std::byte> piece) {
    const uint64_t size = c10::elementSize(type);
    uint64_t element = begin / size;
    while (!piece.empty()) {
      const WeightRange& range = *std::prev(std::ranges::upper_bound(all, element, {}, &WeightRange::begin));
      const uint64_t within = element - range.begin;
      const uint64_t count = std::min<uint64_t>(piece.size() / size, range.end - element);
      to_type(type, values(range).subspan(within, count), piece.first(count * size), what);
      piece = piece.subspan(count * size);
      element += count;
    }
  };
}

// Largest number of bytes of a file of weights.
uint64_t largest_shard(const ConvertArguments& arguments) {
  if (arguments.max_shard_gb == 0) return default_shard_bytes;
  return std::max<uint64_t>(1, static_cast<uint64_t>(arguments.max_shard_gb * 1e9));
}

// A checkpoint as a new Hugging Face directory.
class Export {
 public:
  Export(const fs::path& step_folder, const ConvertArguments& arguments, const fs::path& folder)
      : step_folder_(step_folder),
        folder_(folder),
        arguments_(arguments),
        job_(saved_job(step_folder)),
        type_(arguments.dtype.value_or(at::kFloat)),
        source_(step_folder, arguments.ema),
        tensors_(models::hf_tensors(models::make_model_config(job_.model, 1))) {
    if (base_of(checkpoint::read_manifest(step_folder).layout) != Base()) source_.merge(job_, step_folder);
    check_parameters();
  }

  std::vector<std::string> run() {
    std::vector<std::string> lines(1);
    write_companions(lines);
    const size_t files = write_weights();
    lines.front() = fmt::format("{} of {} at step {}, in {} file{} of {}", job_.model.arch,
                                models::parameters_text(elements_), source_.stored().step(), files,
                                files == 1 ? "" : "s", io::dtype_name(type_));
    return lines;
  }

 private:
  void check_parameters();
  void write_companions(std::vector<std::string>& notes);
  size_t write_weights();
  void write_shard(const std::string& name, std::span<const size_t> numbers);
  io::TensorSpec spec_of(const models::HfTensor& tensor) const {
    return {tensor.name, tensor.float32 ? at::kFloat : type_, tensor.shape};
  }

  fs::path step_folder_, folder_;
  const ConvertArguments& arguments_;
  config::JobConfig job_;
  at::ScalarType type_;
  ParameterSource source_;
  std::vector<models::HfTensor> tensors_;
  int64_t elements_ = 0;
};

void Export::check_parameters() {
  size_t parameters = 0;
  for (const models::HfTensor& tensor : tensors_) {
    for (const models::HfWeight& part : tensor.parts) {
      const auto& shape = source_.shape(part.parameter);
      if (shape != part.shape) {
        throw Error(fmt::format("{}: {} is [{}], but [{}] in the model of the job that saved it",
                                step_folder_.string(), part.parameter, fmt::join(shape, ", "),
                                fmt::join(part.shape, ", ")));
      }
      elements_ += c10::multiply_integers(shape);
      ++parameters;
    }
  }
  if (source_.merges()) return;  // the base gives the others
  if (const size_t stored = source_.stored().names().size(); stored != parameters) {
    throw Error(fmt::format("{} holds {} parameters, but the model of the job that saved it has {}",
                            step_folder_.string(), stored, parameters));
  }
}

// The tokenizer named on the command line, else the directory's from which the checkpoint was made, else the
// job's.
void Export::write_companions(std::vector<std::string>& notes) {
  const fs::path carried = step_folder_ / carried_files;
  if (!arguments_.tokenizer.empty()) {
    copy_tokenizer(arguments_.tokenizer, folder_, "--tokenizer");
  } else if (has_tokenizer(carried)) {
    for (const std::string& name : tokenizer_files())
      if (io::is_there(carried / name))
        io::inner_path(step_folder_,
                       fmt::format("{}/{}", carried_files, name));  // no link out of the checkpoint
    copy_tokenizer_files(carried, folder_);
  } else {
    copy_tokenizer_of(job_, folder_, notes);
  }
  const models::TextEnds ends = read_text_ends(folder_, job_.model, notes);
  write_generation_config(ends, folder_);
  io::write_file_atomically(folder_ / "config.json",
                            models::hf_config(job_.model, type_, ends).dump(2) + "\n");
}

size_t Export::write_weights() {
  std::vector<uint64_t> bytes;
  for (const models::HfTensor& tensor : tensors_) {
    const io::TensorSpec spec = spec_of(tensor);
    bytes.push_back(static_cast<uint64_t>(c10::multiply_integers(spec.shape)) * c10::elementSize(spec.dtype));
  }
  const auto shards = plan_shards(bytes, largest_shard(arguments_));
  std::map<std::string, std::string> file_of;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    const std::string name = shard_name(shard, shards.size());
    write_shard(name, shards[shard]);
    for (const size_t number : shards[shard]) file_of[tensors_[number].name] = name;
  }
  if (shards.size() > 1) {
    const uint64_t total = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
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
    const std::string what =
        fmt::format("'{}': the parameter '{}'", step_folder_.string(), tensor.parts.front().parameter);
    file.write_pieces(tensor.name, source_.fill(spec_of(tensor), tensor.parts, what));
  }
  file.finish();
}

// The rest of an attachment's path below `folder`; nothing if it is elsewhere. Attachments are inner paths.
std::optional<std::string> below(std::string_view folder, std::string_view path) {
  if (!path.starts_with(folder) || !path.substr(folder.size()).starts_with('/')) return std::nullopt;
  std::string rest(path.substr(folder.size() + 1));
  if (!io::is_inner_path(rest)) throw Error(fmt::format("'{}' leads out of the folder '{}'", path, folder));
  return rest;
}

// Names of all tensors in the carried headers.
std::vector<std::string> carried_tensor_names(const fs::path& step_folder) {
  std::vector<std::string> names;
  for (const checkpoint::Attachment& attachment : checkpoint::read_manifest(step_folder).attachments) {
    const auto name = below(carried_headers, attachment.path);
    if (!name) continue;
    const io::MappedFile header(io::inner_path(step_folder / carried_headers, *name));
    const std::string file = fmt::format("'{}'", header.path().string());
    for (io::TensorSpec& tensor : io::parse_header(header.bytes(), file).tensors)
      names.push_back(std::move(tensor.name));
  }
  return names;
}

// Writes the Hugging Face directory from which a checkpoint was made again, byte for byte: the carried files
// as they are, and each file of weights with its own header and the checkpoint's values in that header's
// types.
class Rewrite {
 public:
  Rewrite(const fs::path& step_folder, const fs::path& folder)
      : step_folder_(step_folder),
        folder_(folder),
        model_(models::make_model_config(saved_job(step_folder).model, 1)),
        weights_(models::weight_map(model_, models::whole_model(model_))),
        names_(models::find_architecture(model_.arch).weights, carried_tensor_names(step_folder)),
        source_(step_folder) {
    if (io::is_there(step_folder / carried_tensors)) extra_.emplace(step_folder / carried_tensors);
    if (extra_) extra_bytes_.emplace(step_folder / carried_tensors);
  }

  std::string run();

 private:
  void write_shard(const std::string& name);
  io::SafetensorsWriter::Fill fill(const io::TensorSpec& spec, const std::string& what);

  fs::path step_folder_, folder_;
  models::ModelConfig model_;
  models::WeightMap weights_;
  models::HfNames names_;
  ParameterSource source_;
  std::optional<io::SafetensorsReader> extra_;
  std::optional<io::RegularFile> extra_bytes_;  // of the same file
};

io::SafetensorsWriter::Fill Rewrite::fill(const io::TensorSpec& spec, const std::string& what) {
  if (extra_ && extra_->contains(spec.name)) {
    return [this, name = spec.name](uint64_t begin, std::span<std::byte> piece) {
      extra_bytes_->read(extra_->offset(name) + begin, piece);
    };
  }
  const models::HfTensor* const tensor = weights_.find(names_.usual(spec.name));
  if (tensor == nullptr) throw Error(fmt::format("{} is no parameter of the model", what));
  return source_.fill(spec, tensor->parts, what);
}

void Rewrite::write_shard(const std::string& name) {
  const io::MappedFile header(io::inner_path(step_folder_ / carried_headers, name));
  const std::string file = fmt::format("'{}'", header.path().string());
  fs::create_directories((folder_ / name).parent_path());
  auto writer = io::SafetensorsWriter::with_header(folder_ / name, header.bytes());
  for (const io::TensorSpec& tensor : io::parse_header(header.bytes(), file).tensors) {
    const std::string what = fmt::format("{}: the tensor '{}'", file, tensor.name);
    writer.write_pieces(tensor.name, fill(tensor, what));
  }
  writer.finish();
}

std::string Rewrite::run() {
  size_t files = 0, shards = 0;
  const checkpoint::Manifest manifest = checkpoint::read_manifest(step_folder_);
  for (const checkpoint::Attachment& attachment : manifest.attachments) {
    if (const auto name = below(carried_headers, attachment.path)) {
      write_shard(*name);
      ++shards;
    } else if (const auto other = below(carried_files, attachment.path)) {
      io::copy_file(io::inner_path(step_folder_, attachment.path), folder_ / *other);
      ++files;
    }
  }
  return fmt::format("the directory that it was made of, byte for byte: {} file{} of weights and {} other{}",
                     shards, shards == 1 ? "" : "s", files, files == 1 ? "" : "s");
}

}  // namespace

std::vector<std::string> to_hf(const fs::path& step_folder, const ConvertArguments& arguments,
                               const fs::path& folder) {
  for (const checkpoint::Attachment& carried : checkpoint::read_manifest(step_folder).attachments)
    checkpoint::check_attachment(step_folder, carried);
  const std::optional<config::JobConfig> job = read_saved_run(step_folder).job;
  const bool has_adapters = job && job->lora.rank > 0;
  if (arguments.merge && !has_adapters)
    throw UsageError(fmt::format("--merge: {} holds no adapters", step_folder.string()));
  if (has_adapters && !arguments.merge) return to_peft(step_folder, arguments, folder);
  const bool as_it_was =
      !arguments.dtype && arguments.max_shard_gb == 0 && arguments.tokenizer.empty() && !arguments.ema;
  if (as_it_was && io::is_there(step_folder / carried_headers)) return {Rewrite(step_folder, folder).run()};
  return Export(step_folder, arguments, folder).run();
}

std::set<std::string> carried_names(const fs::path& step_folder) {
  std::set<std::string> names;
  for (const checkpoint::Attachment& attachment : checkpoint::read_manifest(step_folder).attachments) {
    for (const char* folder : {carried_files, carried_headers}) {
      if (auto name = below(folder, attachment.path)) names.insert(*std::move(name));
    }
  }
  return names;
}

}  // namespace pptrain::app
