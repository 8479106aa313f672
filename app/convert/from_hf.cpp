// Converts a Hugging Face directory to a checkpoint that has only weights.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "app/convert/convert.h"
#include "app/convert/element_types.h"
#include "app/convert/hf_companions.h"
#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "core/config/validate.h"
#include "core/io/files.h"
#include "core/io/safetensors.h"
#include "models/flops.h"
#include "models/hf_directory.h"
#include "models/model_config.h"
#include "parallel/checkpoint/folder_writer.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;

config::JobConfig job_of(const fs::path& hf_dir) {
  config::JobConfig job;
  job.model = models::read_hf_model(hf_dir.string());
  config::resolve(job);
  return job;
}

class Import {
 public:
  Import(const fs::path& hf_dir, const fs::path& folder);
  std::vector<std::string> run();

 private:
  std::vector<io::TensorSpec> parameters() const;
  bool is_tied_head(const models::HfWeight& weight) const;
  // Fills `out` with the tensor's bytes from byte `begin` on. Reads the file instead of mapping it, so that
  // memory does not fill up.
  void read(const std::string& tensor, uint64_t begin, std::span<std::byte> out);
  std::string describe(const std::string& tensor) const;
  void fill(const models::HfWeight& weight, uint64_t begin, std::span<std::byte> piece);
  at::Tensor gather(const models::HfWeight& weight, int64_t first, int64_t count) const;
  void write_extra(checkpoint::FolderWriter& writer);
  void carry(checkpoint::FolderWriter& writer, const fs::path& from, const fs::path& to, uint64_t bytes);
  std::vector<std::string> carry_files(checkpoint::FolderWriter& writer);

  fs::path hf_dir_, folder_;
  config::JobConfig job_;
  models::ModelConfig model_;
  models::HfDirectory source_;
  std::vector<models::HfWeight> weights_;
  std::optional<io::RegularFile> open_;  // the file read last
};

Import::Import(const fs::path& hf_dir, const fs::path& folder)
    : hf_dir_(hf_dir),
      folder_(folder),
      job_(job_of(hf_dir)),
      model_(models::make_model_config(job_.model, 1)),
      source_(model_, hf_dir),
      weights_(source_.find_all()) {}

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

void Import::read(const std::string& tensor, uint64_t begin, std::span<std::byte> out) {
  const io::SafetensorsReader& file = source_.files().shard(tensor);
  if (!open_ || open_->path() != file.path()) open_.emplace(file.path());
  open_->read(file.offset(tensor) + begin, out);
}

std::string Import::describe(const std::string& tensor) const {
  return fmt::format("'{}': the tensor '{}'", source_.files().shard(tensor).path().string(), tensor);
}

// Bytes of a parameter, float32, from byte `begin` on. If its elements are not contiguous, they are gathered
// from the mapped file.
void Import::fill(const models::HfWeight& weight, uint64_t begin, std::span<std::byte> piece) {
  const at::ScalarType type = source_.files().spec(weight.tensor).dtype;
  const uint64_t element = c10::elementSize(type);
  const uint64_t first = begin / sizeof(float), count = piece.size() / sizeof(float);
  if (!weight.is_contiguous()) {
    const at::Tensor values = gather(weight, static_cast<int64_t>(first), static_cast<int64_t>(count));
    to_float(type, {static_cast<const std::byte*>(values.const_data_ptr()), count * element}, piece,
             describe(weight.tensor));
    return;
  }
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(count * element);
  const std::span values(buffer.get(), count * element);
  read(weight.tensor, (static_cast<uint64_t>(weight.first) + first) * element, values);
  to_float(type, values, piece, describe(weight.tensor));
}

// Elements [first, first + count) of the parameter.
at::Tensor Import::gather(const models::HfWeight& weight, int64_t first, int64_t count) const {
  const int64_t columns = weight.columns(), row = first / columns;
  return weight.rows_of(source_.files().tensor(weight.tensor), row, (first + count + columns - 1) / columns)
      .reshape({-1})
      .narrow(0, first - row * columns, count)
      .contiguous();
}

void Import::write_extra(checkpoint::FolderWriter& writer) {
  if (source_.others().empty()) return;
  std::vector<io::TensorSpec> specs;
  for (const std::string& other : source_.others()) specs.push_back(source_.files().spec(other));
  fs::create_directories((folder_ / carried_tensors).parent_path());
  io::SafetensorsWriter file(folder_ / carried_tensors, specs);
  for (const std::string& other : source_.others()) {
    file.write_pieces(other, [&](uint64_t begin, std::span<std::byte> piece) { read(other, begin, piece); });
  }
  file.finish();
  writer.attach(carried_tensors);
}

void Import::carry(checkpoint::FolderWriter& writer, const fs::path& from, const fs::path& to,
                   uint64_t bytes) {
  io::copy_file(from, folder_ / to, bytes);
  writer.attach(to.string());
}

// Returns the names that are left out.
std::vector<std::string> Import::carry_files(checkpoint::FolderWriter& writer) {
  std::set<std::string> names;
  for (const auto& [name, shard] : source_.files().shards()) {
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
  if (const auto& others = source_.others(); !others.empty()) {
    lines.push_back(fmt::format("{} tensor{} that the model does not have {} carried along: {}{}",
                                others.size(), others.size() == 1 ? "" : "s",
                                others.size() == 1 ? "is" : "are", others.front(),
                                others.size() == 1 ? "" : ", ..."));
  }
  std::ranges::copy(source_.warnings(), std::back_inserter(lines));
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
