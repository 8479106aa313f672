// A Hugging Face directory as a checkpoint of weights alone.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "app/convert/convert.h"
#include "app/convert/element_types.h"
#include "app/convert/hf_companions.h"
#include "core/base/error.h"
#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "core/config/validate.h"
#include "core/io/files.h"
#include "core/io/hf_checkpoint.h"
#include "models/flops.h"
#include "models/hf_config.h"
#include "models/hf_loader.h"
#include "models/registry.h"
#include "parallel/checkpoint/folder_writer.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;

config::JobConfig job_of(const fs::path& hf_dir) {
  config::JobConfig job;
  job.model = models::read_hf_config(hf_dir.string());
  config::resolve(job);
  return job;
}

// A tensor of one of its files.
struct HfStored {
  const io::SafetensorsReader* file = nullptr;
  io::TensorSpec spec;

  std::string describe() const {
    return fmt::format("'{}': the tensor '{}'", file->path().string(), spec.name);
  }
};

// The weights of a Hugging Face directory, read at chosen places: what is read is not mapped, so that memory
// does not fill with it.
class HfSource {
 public:
  // Throws Error as HfCheckpoint does.
  explicit HfSource(const fs::path& hf_dir) : hf_(hf_dir) {}

  const io::HfCheckpoint& hf() const { return hf_; }
  HfStored find(const std::string& tensor) const { return {&hf_.shard(tensor), hf_.spec(tensor)}; }

  // Fills `out` with the tensor's bytes from byte `begin` on.
  void read(const HfStored& tensor, uint64_t begin, std::span<std::byte> out);
  // Whether two tensors are the same type, shape and bytes.
  bool same(const HfStored& a, const HfStored& b);
  // Those that are not in `taken`, file by file. Throws Error where two files have one of the same name.
  std::vector<HfStored> others(const std::set<std::string>& taken) const;

 private:
  io::HfCheckpoint hf_;
  std::optional<io::RegularFile> open_;  // that was read last
};

void HfSource::read(const HfStored& tensor, uint64_t begin, std::span<std::byte> out) {
  if (!open_ || open_->path() != tensor.file->path()) open_.emplace(tensor.file->path());
  open_->read(tensor.file->offset(tensor.spec.name) + begin, out);
}

bool HfSource::same(const HfStored& a, const HfStored& b) {
  if (a.spec.dtype != b.spec.dtype || a.spec.shape != b.spec.shape) return false;
  constexpr uint64_t piece_bytes = uint64_t{1} << 20;
  std::vector<std::byte> first(piece_bytes), second(piece_bytes);
  const uint64_t size = a.file->bytes(a.spec.name).size();
  for (uint64_t at = 0; at < size; at += piece_bytes) {
    const uint64_t count = std::min(piece_bytes, size - at);
    const std::span<std::byte> ours = std::span(first).first(count), theirs = std::span(second).first(count);
    read(a, at, ours);
    read(b, at, theirs);
    if (!std::ranges::equal(ours, theirs)) return false;
  }
  return true;
}

std::vector<HfStored> HfSource::others(const std::set<std::string>& taken) const {
  std::vector<HfStored> found;
  std::map<std::string, const io::SafetensorsReader*> seen;
  for (const auto& [name, file] : hf_.shards()) {
    for (const io::TensorSpec& spec : file.tensors()) {
      const HfStored tensor{&file, spec};
      const auto [other, is_new] = seen.emplace(spec.name, &file);
      if (!is_new)
        throw Error(fmt::format("{} is in {} too", tensor.describe(), other->second->path().string()));
      if (!taken.contains(spec.name)) found.push_back(tensor);
    }
  }
  return found;
}

class Import {
 public:
  Import(const fs::path& hf_dir, const fs::path& folder);
  std::vector<std::string> run();

 private:
  std::vector<io::TensorSpec> parameters() const;
  bool is_tied_head(const models::HfWeight& weight) const;
  std::set<std::string> taken();
  void fill(const models::HfWeight& weight, uint64_t begin, std::span<std::byte> piece);
  at::Tensor gather(const models::HfWeight& weight, int64_t first, int64_t count) const;
  void write_extra(checkpoint::FolderWriter& writer);
  void carry(checkpoint::FolderWriter& writer, const fs::path& from, const fs::path& to, uint64_t bytes);
  std::vector<std::string> carry_files(checkpoint::FolderWriter& writer);

  fs::path hf_dir_, folder_;
  config::JobConfig job_;
  models::ModelConfig model_;
  HfSource source_;
  std::vector<models::HfWeight> weights_;
  std::vector<HfStored> extra_;  // tensors that no parameter takes
};

Import::Import(const fs::path& hf_dir, const fs::path& folder)
    : hf_dir_(hf_dir),
      folder_(folder),
      job_(job_of(hf_dir)),
      model_(models::make_model_config(job_.model, 1)),
      source_(hf_dir),
      weights_(models::find_hf_weights(model_, source_.hf())),
      extra_(source_.others(taken())) {
  for (const models::HfWeight& weight : weights_) {
    const HfStored stored = source_.find(weight.tensor);
    check_exact_in_float(stored.spec.dtype, stored.describe());
  }
}

bool Import::is_tied_head(const models::HfWeight& weight) const {
  return model_.tied && weight.parameter == "head.weight";
}

std::vector<io::TensorSpec> Import::parameters() const {
  std::vector<io::TensorSpec> specs;
  for (const models::HfWeight& weight : weights_) {
    if (!is_tied_head(weight)) specs.push_back({weight.parameter, at::kFloat, weight.shape});
  }
  return specs;
}

// The tensors that are the model's. A directory of a tied model may have the head all the same: then it must
// be the embedding.
std::set<std::string> Import::taken() {
  std::set<std::string> names;
  for (const models::HfWeight& weight : weights_) names.insert(weight.tensor);
  const auto map = models::find_architecture(model_.arch).weights;
  const std::string head_name = models::hf_name(map, "head.weight");
  if (!model_.tied || !source_.hf().contains(head_name)) return names;
  const HfStored head = source_.find(head_name);
  const HfStored embedding = source_.find(models::hf_name(map, "embed.weight"));
  if (!source_.same(head, embedding)) {
    throw Error(fmt::format(
        "{} is not {}, though config.json says tie_word_embeddings: which of the two is the model's head?",
        head.describe(), embedding.spec.name));
  }
  names.insert(head_name);
  return names;
}

// Bytes of a parameter, float32, from byte `begin` on. Where its elements do not follow each other they are
// gathered from the mapped file.
void Import::fill(const models::HfWeight& weight, uint64_t begin, std::span<std::byte> piece) {
  const HfStored stored = source_.find(weight.tensor);
  const uint64_t element = c10::elementSize(stored.spec.dtype);
  const uint64_t first = begin / sizeof(float), count = piece.size() / sizeof(float);
  if (!weight.is_contiguous()) {
    const at::Tensor values = gather(weight, static_cast<int64_t>(first), static_cast<int64_t>(count));
    to_float(stored.spec.dtype, {static_cast<const std::byte*>(values.const_data_ptr()), count * element},
             piece, stored.describe());
    return;
  }
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(count * element);
  const std::span values(buffer.get(), count * element);
  source_.read(stored, (static_cast<uint64_t>(weight.first) + first) * element, values);
  to_float(stored.spec.dtype, values, piece, stored.describe());
}

// Elements [first, first + count) of the parameter.
at::Tensor Import::gather(const models::HfWeight& weight, int64_t first, int64_t count) const {
  const int64_t columns = weight.columns(), row = first / columns;
  return weight.rows_of(source_.hf().tensor(weight.tensor), row, (first + count + columns - 1) / columns)
      .reshape({-1})
      .narrow(0, first - row * columns, count)
      .contiguous();
}

void Import::write_extra(checkpoint::FolderWriter& writer) {
  if (extra_.empty()) return;
  std::vector<io::TensorSpec> specs;
  for (const HfStored& extra : extra_) specs.push_back(extra.spec);
  fs::create_directories((folder_ / carried_tensors).parent_path());
  io::SafetensorsWriter file(folder_ / carried_tensors, specs);
  for (const HfStored& extra : extra_) {
    file.write_pieces(extra.spec.name,
                      [&](uint64_t begin, std::span<std::byte> piece) { source_.read(extra, begin, piece); });
  }
  file.finish();
  writer.attach(carried_tensors);
}

void Import::carry(checkpoint::FolderWriter& writer, const fs::path& from, const fs::path& to,
                   uint64_t bytes) {
  io::copy_file(from, folder_ / to, bytes);
  writer.attach(to.string());
}

// Returns what is left out.
std::vector<std::string> Import::carry_files(checkpoint::FolderWriter& writer) {
  std::set<std::string> names;
  for (const auto& [name, shard] : source_.hf().shards()) {
    carry(writer, shard.path(), fs::path(carried_headers) / name, shard.header_bytes());
    names.insert(name);
  }
  std::vector<std::string> notes;
  for (const fs::path& file : list_other_files(hf_dir_, names, notes))
    carry(writer, hf_dir_ / file, carried_files / file, largest_carried);
  for (std::string& left : notes)
    left = fmt::format("left out, and not written when it is converted back: {}", left);
  return notes;
}

std::vector<std::string> Import::run() {
  std::vector<std::string> lines = {fmt::format("{} of {} at step 0, without optimizer state", model_.arch,
                                                models::parameters_text(models::parameter_count(model_)))};
  checkpoint::FolderWriter writer(folder_, parameters());
  for (const models::HfWeight& weight : weights_) {
    if (is_tied_head(weight)) continue;
    writer.write(weight.parameter,
                 [&](uint64_t begin, std::span<std::byte> piece) { fill(weight, begin, piece); });
  }
  for (const HfStored& extra : extra_)
    lines.push_back(fmt::format("{} is no parameter of the model; it is carried along", extra.describe()));
  write_extra(writer);
  std::ranges::move(carry_files(writer), std::back_inserter(lines));
  writer.finish({}, {{"converted_from", "Hugging Face"}}, config::to_toml(job_));
  return lines;
}

}  // namespace

std::vector<std::string> from_hf(const fs::path& hf_dir, const fs::path& folder) {
  return Import(hf_dir, folder).run();
}

}  // namespace pptrain::app
