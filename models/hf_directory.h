// A Hugging Face directory: where each parameter lies, and what becomes of tensors that no parameter takes.
// The one reader of such weights: for a start, eval, generate, check and convert.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/job_config.h"
#include "core/io/hf_checkpoint.h"
#include "models/model_config.h"
#include "models/transformer_stage.h"
#include "models/weight_map.h"

namespace pptrain::models {

// The model of dir/config.json, as transformers loads it: if it is tied, but the weights have a head that
// differs from the embedding, the model has a head of its own. Throws UsageError as read_hf_config does.
config::ModelSection read_hf_model(const std::string& dir);

// The names of a directory's tensors: transformers' names, or the same with another beginning, as in a base
// model (without "model.") and in the text model of a model with images.
class HfNames {
 public:
  // stored: names of all tensors of the directory.
  HfNames(std::span<const WeightName> names, const std::vector<std::string>& stored);

  // transformers' name of a tensor of the directory.
  std::string usual(const std::string& stored) const;
  // The inverse; empty if the directory has no such tensor.
  std::string stored(const std::string& usual) const;

 private:
  std::span<const WeightName> names_;
  std::set<std::string> all_;
  std::string begins_, usually_;  // what names begin with, here and in transformers
};

class HfDirectory {
 public:
  // Reads headers; for a tied model with a head tensor too, also the head and the embedding. Throws Error as
  // HfCheckpoint does, and if a tensor is refused, as the list in hf_directory.cpp says.
  HfDirectory(const ModelConfig& model, const std::filesystem::path& folder);

  const io::HfCheckpoint& files() const { return files_; }
  // Where a parameter lies. Throws Error that names the tensor: missing, or of another shape or type.
  HfWeight find(std::string_view parameter) const;
  // The same for every parameter of the whole model, in the model's order; a tied head lies in the embedding.
  std::vector<HfWeight> find_all() const;
  // Fills the masters of a materialised stage (float16, bfloat16 or float32 -> float32) and its compute
  // weights. Reads only the tensors that the stage needs. Parameters without a tensor start as they are.
  void load(TransformerStage& stage) const;

  // Tensors that no parameter takes and that change nothing, sorted.
  const std::vector<std::string>& others() const { return others_; }
  // For the user: what was left out, and what differs from config.json.
  const std::vector<std::string>& notes() const { return notes_; }
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  std::set<std::string> taken() const;  // transformers' names
  void check_unused(const std::string& stored, const std::string& usual);
  void sort_out(const std::string& stored, const std::string& usual);
  void note_left_out();
  void warn_of_own_head();
  [[noreturn]] void refuse(const std::string& stored, const std::string& why) const;

  const ModelConfig model_;
  io::HfCheckpoint files_;
  std::vector<std::string> parameters_;  // that have a tensor
  WeightMap map_;
  HfNames names_;
  int prediction_layers_ = 0;  // for multi-token prediction, behind the model's
  std::vector<std::string> others_, unknown_, predicting_, notes_, warnings_;
};

// The tensors of a directory that is written, in the order of the model's parameters; none for a tied head.
// Throws UsageError for a parameter that transformers' model lacks: a bias that balances experts.
std::vector<HfTensor> hf_tensors(const ModelConfig& model);

// For the user: a parameter for which hf_tensors() throws; a shape that transformers does not load; adapters
// that peft cannot have, because the weights that they adapt share a tensor with others.
std::vector<std::string> export_warnings(const ModelConfig& model);

// Where the parameters of a part of the model may lie, by transformers' names.
WeightMap weight_map(const ModelConfig& model, const StageSlice& slice);

}  // namespace pptrain::models
