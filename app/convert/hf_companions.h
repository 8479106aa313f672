// What a Hugging Face directory has beside its weights: the tokenizer's files and the ends of a text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "models/hf_config.h"

namespace pptrain::app {

// Copies the files that `tokenizer` (a folder, or a tokenizer.json with its neighbours) has of
// tokenizer_files() into `folder`. Throws UsageError, which begins with `option`, where there is no
// tokenizer.json.
void copy_tokenizer(const std::filesystem::path& tokenizer, const std::filesystem::path& folder,
                    const std::string& option);

// The same of the tokenizer that the job names (data.tokenizer, else what model.hf_dir has). What is not
// there or no tokenizer is left out, of which `notes` hears: a checkpoint's job could name any file.
void copy_tokenizer_of(const config::JobConfig& job, const std::filesystem::path& folder,
                       std::vector<std::string>& notes);

// The ids by which the tokenizer in `folder` begins and ends texts, as generation here takes them; none where
// there is no tokenizer, or one that cannot be read here, of which `notes` hears. Throws UsageError where it
// has more ids than the model.
models::TextEnds read_text_ends(const std::filesystem::path& folder, const config::ModelSection& model,
                                std::vector<std::string>& notes);

// Makes transformers end texts there too: writes generation_config.json, or these ids into the one in
// `folder`.
void write_generation_config(const models::TextEnds& ends, const std::filesystem::path& folder);

// What a checkpoint made of a Hugging Face directory carries along, so that the directory can be written
// again byte for byte: below hf/ in the checkpoint's folder.
inline constexpr const char* carried_files = "hf/files";  // the directory's other files, under their names
inline constexpr const char* carried_headers = "hf/headers";            // how each file of weights begins
inline constexpr const char* carried_tensors = "hf/extra.safetensors";  // tensors that no parameter takes

// What is larger and no weights of the model's is left where it is.
inline constexpr uint64_t largest_carried = uint64_t{256} << 20;

// The files of a directory and its folders that are not among `shards` (relative names). Links to files of
// the directory (or of the Hub's cache that it lies in) are files; other links, linked and hidden folders are
// left out, and so is what is larger than `largest`: `left_out` gets in words which, and why. Both sorted.
std::vector<std::filesystem::path> list_other_files(const std::filesystem::path& hf_dir,
                                                    const std::set<std::string>& shards,
                                                    std::vector<std::string>& left_out,
                                                    uint64_t largest = largest_carried);

}  // namespace pptrain::app
