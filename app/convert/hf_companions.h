// A Hugging Face directory's files other than its weights: the tokenizer's files and the ends of a text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/config/job_config.h"
#include "models/hf_config.h"

namespace pptrain::app {

// Does the folder have a tokenizer that transformers reads, in whichever form?
bool has_tokenizer(const std::filesystem::path& folder);

// Copies those of tokenizer_files() that `from` has and `folder` has not.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& folder);

// Copies those of tokenizer_files() that `tokenizer` has (a folder, or a tokenizer.json with its neighbours)
// into `folder`. Throws UsageError, which begins with `option`, if there is no tokenizer.json.
void copy_tokenizer(const std::filesystem::path& tokenizer, const std::filesystem::path& folder,
                    const std::string& option);

// The same for the tokenizer that the job names (data.tokenizer, else the one in model.hf_dir). If it is
// missing or no tokenizer, it is left out and `notes` says so: a checkpoint's job could name any file.
void copy_tokenizer_of(const config::JobConfig& job, const std::filesystem::path& folder,
                       std::vector<std::string>& notes);

// The ids by which the tokenizer in `folder` begins and ends texts, as generation here uses them. None if
// there is no tokenizer, or if it cannot be read here, which `notes` says. Throws UsageError if it has more
// ids than the model.
models::TextEnds read_text_ends(const std::filesystem::path& folder, const config::ModelSection& model,
                                std::vector<std::string>& notes);

// Makes transformers end texts at them too: writes generation_config.json, or these ids into the one in
// `folder`.
void write_generation_config(const models::TextEnds& ends, const std::filesystem::path& folder);

// Files that a checkpoint made from a Hugging Face directory carries along, so that the directory can be
// written again byte for byte: below hf/ in the checkpoint's folder.
inline constexpr const char* carried_files = "hf/files";  // the directory's other files, under their names
inline constexpr const char* carried_headers = "hf/headers";            // headers of the weights' files
inline constexpr const char* carried_tensors = "hf/extra.safetensors";  // tensors that are no parameter

// A larger file that has no weights of the model is left behind.
inline constexpr uint64_t largest_carried = uint64_t{256} << 20;

// The files of a directory and its folders that are not among `shards` (relative names). Links to files of
// the directory (or of the Hub's cache that it lies in) are files. Other links, linked and hidden folders,
// and files larger than `largest` are left out; `left_out` gets their names and the reasons. Both sorted.
std::vector<std::filesystem::path> list_other_files(const std::filesystem::path& hf_dir,
                                                    const std::set<std::string>& shards,
                                                    std::vector<std::string>& left_out,
                                                    uint64_t largest = largest_carried);

}  // namespace pptrain::app
