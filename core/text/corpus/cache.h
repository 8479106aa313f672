// Token files made of texts once, and kept for later starts and other jobs.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "core/text/corpus/tokenize_files.h"

namespace pptrain::corpus {

// 32 hexadecimal digits of what the tokens depend on: the files' lengths and bytes at a few places
// (core/data/inspect.h), tokenizer.json, the token that ends a text, format and options. Names and paths do
// not count, nor do other files beside tokenizer.json. Throws Error if a file cannot be read.
std::string fingerprint(const TokenizeRequest& request);

// The folder's name of a cache: fingerprint() and, since this looks at only a few places, the times at which
// the files were changed. It also says whether bad lines were left out: other requests treat them as an
// error.
std::string cache_name(const TokenizeRequest& request);

// The token file in a cache's folder, with its index and prompts beside it.
std::filesystem::path token_file(const std::filesystem::path& cache);

// The cache of this name in one of the folders, or "". A cache is there whole or not at all.
std::filesystem::path find_cache(std::span<const std::filesystem::path> folders, const std::string& name);

// Makes a cache in the first of the folders that can be written, and gives its path: files in a folder of
// another name, which is renamed when all of them are synced. Removes what killed processes of this host left
// of caches of this name. If another process makes the same one, either will do. Throws Error if no folder
// can be written, and what tokenize_files throws.
std::filesystem::path make_cache(std::span<const std::filesystem::path> folders, const std::string& name,
                                 TokenizeRequest request,
                                 const std::function<void(const TokenizeProgress&)>& report);

}  // namespace pptrain::corpus
