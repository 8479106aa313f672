#include "app/convert/from_hf.h"

#include <spdlog/fmt/fmt.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>

#include "app/convert/hf_companions.h"
#include "app/convert/hf_source.h"
#include "app/convert/parameter_source.h"
#include "core/base/error.h"
#include "core/config/job_config.h"
#include "core/config/loader.h"
#include "core/config/validate.h"
#include "core/io/files.h"
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

class Import {
 public:
  Import(const fs::path& hf_dir, const fs::path& folder);
  Conversion run();

 private:
  std::vector<io::TensorSpec> parameters() const;
  bool is_tied_head(const models::HfWeight& weight) const;
  std::set<std::string> taken();
  void fill(const models::HfWeight& weight, uint64_t begin, std::span<std::byte> piece);
  void write_extra(checkpoint::FolderWriter& writer);
  void carry(checkpoint::FolderWriter& writer, const fs::path& from, const fs::path& to, uint64_t bytes);
  void carry_files(checkpoint::FolderWriter& writer, Conversion& done);

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
    const HfStored stored = source_.find(weight.place.tensor);
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
  for (const models::HfWeight& weight : weights_) names.insert(weight.place.tensor);
  const auto map = models::find_architecture(model_.arch).weights;
  const std::string head_name = models::hf_name(map, "head.weight", false);
  if (!model_.tied || !source_.hf().contains(head_name)) return names;
  const HfStored head = source_.find(head_name);
  const HfStored embedding = source_.find(models::hf_name(map, "embed.weight", false));
  if (!source_.same(head, embedding)) {
    throw Error(fmt::format(
        "{} is not {}, though config.json says tie_word_embeddings: which of the two is the model's head?",
        head.describe(), embedding.spec.name));
  }
  names.insert(head_name);
  return names;
}

// Bytes of a parameter, float32, from byte `begin` on.
void Import::fill(const models::HfWeight& weight, uint64_t begin, std::span<std::byte> piece) {
  const HfStored stored = source_.find(weight.place.tensor);
  const uint64_t first = static_cast<uint64_t>(weight.place.first) + begin / sizeof(float);
  const uint64_t element = c10::elementSize(stored.spec.dtype);
  const uint64_t bytes = piece.size() / sizeof(float) * element;
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(bytes);
  const std::span values(buffer.get(), bytes);
  source_.read(stored, first * element, values);
  to_float(stored.spec.dtype, values, piece, stored.describe());
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

void Import::carry_files(checkpoint::FolderWriter& writer, Conversion& done) {
  std::set<std::string> names;
  for (const auto& [name, shard] : source_.hf().shards()) {
    carry(writer, shard.path(), fs::path(carried_headers) / name, shard.header_bytes());
    names.insert(name);
  }
  const OtherFiles others = list_other_files(hf_dir_, names);
  for (const fs::path& file : others.carried)
    carry(writer, hf_dir_ / file, carried_files / file, largest_carried);
  for (const std::string& left : others.left_out)
    done.notes.push_back(fmt::format("left out, and not written when it is converted back: {}", left));
}

Conversion Import::run() {
  Conversion done{
      .written = fmt::format("{} of {:.2f} M parameters at step 0, without optimizer state", model_.arch,
                             static_cast<double>(models::parameter_count(model_)) / 1e6),
      .notes = {}};
  checkpoint::FolderWriter writer(folder_, parameters());
  for (const models::HfWeight& weight : weights_) {
    if (is_tied_head(weight)) continue;
    writer.write(weight.parameter,
                 [&](uint64_t begin, std::span<std::byte> piece) { fill(weight, begin, piece); });
  }
  for (const HfStored& extra : extra_)
    done.notes.push_back(
        fmt::format("{} is no parameter of the model; it is carried along", extra.describe()));
  write_extra(writer);
  carry_files(writer, done);
  writer.finish({}, {{"converted_from", "Hugging Face"}}, config::to_toml(job_));
  return done;
}

}  // namespace

Conversion from_hf(const fs::path& hf_dir, const fs::path& folder) {
  return Import(hf_dir, folder).run();
}

}  // namespace pptrain::app
