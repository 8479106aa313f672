// The Hugging Face directory that a checkpoint was made of, written again byte for byte.
#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "app/convert/from_hf.h"

namespace pptrain::app {

// From a checkpoint of from_hf into the empty folder `folder`: the carried files as they are, and each file
// of weights with its own header and the checkpoint's values in that header's types. The caller has checked
// what is carried (checkpoint::check_attachment). Throws Error that names file and tensor where the weights
// are damaged.
Conversion rewrite_hf(const std::filesystem::path& step_folder, const std::filesystem::path& folder);

// The files, relative, that a checkpoint carries along: what rewrite_hf writes beside weights. None for one
// that was made otherwise.
std::set<std::string> carried_names(const std::filesystem::path& step_folder);

}  // namespace pptrain::app
