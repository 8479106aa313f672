// What a Hugging Face directory has beside its weights: the tokenizer's files and the ends of a text.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "models/hf_writer.h"

namespace pptrain::app {

// Copies the files that `tokenizer` (a folder, or a tokenizer.json with its neighbours) has of
// tokenizer_files() into `folder`. Throws UsageError, which begins with `option`, where there is no
// tokenizer.json.
void copy_tokenizer(const std::filesystem::path& tokenizer, const std::filesystem::path& folder,
                    const std::string& option);

// The ids by which the tokenizer in `folder` begins and ends texts; none where there is no tokenizer, or one
// that cannot be read here, of which `notes` hears. Throws UsageError where it has more ids than the model.
models::TextEnds read_text_ends(const std::filesystem::path& folder, const config::ModelSection& model,
                                std::vector<std::string>& notes);

// Writes generation_config.json of these, unless `folder` has one.
void write_generation_config(const models::TextEnds& ends, const std::filesystem::path& folder);

}  // namespace pptrain::app
