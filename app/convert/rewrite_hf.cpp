#include "app/convert/rewrite_hf.h"

#include <spdlog/fmt/fmt.h>

#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "app/convert/hf_companions.h"
#include "app/convert/parameter_source.h"
#include "core/base/error.h"
#include "core/io/files.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/io/safetensors.h"
#include "models/hf_config.h"
#include "models/model_config.h"
#include "models/registry.h"
#include "parallel/checkpoint/manifest.h"

namespace pptrain::app {
namespace {

namespace fs = std::filesystem;

// What of an attachment's path is below `folder`; nothing where it is not. Attachments are inner paths.
std::optional<std::string> below(std::string_view folder, std::string_view path) {
  if (!path.starts_with(folder) || !path.substr(folder.size()).starts_with('/')) return std::nullopt;
  std::string rest(path.substr(folder.size() + 1));
  if (!io::is_inner_path(rest)) throw Error(fmt::format("'{}' leads out of the folder '{}'", path, folder));
  return rest;
}

class Rewrite {
 public:
  Rewrite(const fs::path& step_folder, const fs::path& folder)
      : step_folder_(step_folder),
        folder_(folder),
        model_(models::make_model_config(models::read_hf_config((step_folder / carried_files).string()), 1)),
        source_(step_folder) {
    if (io::is_there(step_folder / carried_tensors)) extra_.emplace(step_folder / carried_tensors);
    if (extra_) extra_bytes_.emplace(step_folder / carried_tensors);
  }

  Conversion run();

 private:
  void write_shard(const std::string& name);
  io::SafetensorsWriter::Fill fill(const io::TensorSpec& spec, const std::string& what);

  fs::path step_folder_, folder_;
  models::ModelConfig model_;
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
  const auto names = models::find_architecture(model_.arch).weights;
  std::vector<std::string> parameters = models::parameters_in(names, spec.name, model_.sparse.experts);
  if (parameters.empty()) throw Error(fmt::format("{} is no parameter of the model", what));
  if (model_.tied && parameters.front() == "head.weight") parameters.front() = "embed.weight";
  return source_.fill(spec, std::move(parameters), what);
}

void Rewrite::write_shard(const std::string& name) {
  const io::MappedFile header(io::inner_path(step_folder_ / carried_headers, name));
  const std::string file = fmt::format("'{}'", header.path().string());
  fs::create_directories((folder_ / name).parent_path());
  auto writer = io::SafetensorsWriter::with_header(folder_ / name, header.bytes());
  for (const io::DescribedTensor& tensor : io::parse_header(header.bytes(), file).tensors) {
    const std::string what = fmt::format("{}: the tensor '{}'", file, tensor.spec.name);
    writer.write_pieces(tensor.spec.name, fill(tensor.spec, what));
  }
  writer.finish();
}

Conversion Rewrite::run() {
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
  return {.written = fmt::format(
              "the directory that it was made of, byte for byte: {} file{} of weights and {} other{}", shards,
              shards == 1 ? "" : "s", files, files == 1 ? "" : "s"),
          .notes = {}};
}

}  // namespace

Conversion rewrite_hf(const fs::path& step_folder, const fs::path& folder) {
  return Rewrite(step_folder, folder).run();
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
