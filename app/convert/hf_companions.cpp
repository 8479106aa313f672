#include "app/convert/hf_companions.h"

#include <spdlog/fmt/fmt.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "app/convert/target_folder.h"
#include "core/base/error.h"
#include "core/io/atomic_file.h"
#include "core/io/copy_file.h"
#include "core/io/is_there.h"
#include "core/tokenizer/tokenizer.h"

namespace pptrain::app {

namespace fs = std::filesystem;

namespace {
const std::string& definition = tokenizer_files().front();  // tokenizer.json
}

void copy_tokenizer(const fs::path& tokenizer, const fs::path& folder, const std::string& option) {
  const bool is_folder = fs::is_directory(tokenizer);
  const fs::path file = is_folder ? tokenizer / definition : tokenizer;
  if (!io::is_there(file)) throw UsageError(fmt::format("{}: there is no {}", option, file.string()));
  io::copy_file(file, folder / definition);
  for (const std::string& name : tokenizer_files()) {
    const fs::path neighbour = file.parent_path() / name;
    if (name != definition && io::is_there(neighbour)) io::copy_file(neighbour, folder / name);
  }
}

models::TextEnds read_text_ends(const fs::path& folder, const config::ModelSection& model,
                                std::vector<std::string>& notes) {
  if (!io::is_there(folder / definition)) return {};
  std::optional<tokenizer::Tokenizer> tokenizer;
  try {
    tokenizer = tokenizer::Tokenizer::load(folder);
  } catch (const Error& error) {
    notes.push_back(
        fmt::format("config.json does not say which tokens begin and end a text: {}", error.what()));
    return {};
  }
  if (tokenizer->vocab_size() > model.vocab_size) {
    throw UsageError(
        fmt::format("the tokenizer has ids up to {}, but model.vocab_size = {}: it is another "
                    "model's; --tokenizer names the right one",
                    tokenizer->vocab_size() - 1, model.vocab_size));
  }
  return {.bos = tokenizer->bos_id(), .eos = tokenizer->eos_id()};
}

void write_generation_config(const models::TextEnds& ends, const fs::path& folder) {
  const fs::path path = folder / "generation_config.json";
  if (io::is_there(path)) return;
  nlohmann::ordered_json json = {{"_from_model_config", true}};
  if (ends.bos) json["bos_token_id"] = *ends.bos;
  if (ends.eos) json["eos_token_id"] = *ends.eos;
  io::write_file_atomically(path, json.dump(2) + "\n");
}

}  // namespace pptrain::app
