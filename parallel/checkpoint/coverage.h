// Whether what the files hold of each tensor is the tensor: every element, once.
#pragma once

#include <string>
#include <vector>

#include "parallel/checkpoint/manifest.h"

namespace pptrain::checkpoint {

// Of each tensor that is not stored whole and once, the first thing that is wrong, in words that name the
// tensor, the elements and the files: elements stored twice or nowhere, slices of different types or global
// shapes. Sorted by file kind and name. The slices lie within their tensors (read_manifest).
std::vector<std::string> coverage_problems(const std::vector<FileEntry>& files);

}  // namespace pptrain::checkpoint
