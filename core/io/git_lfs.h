// git-LFS leaves a small text in the place of a file that it has not fetched.
#pragma once

#include <string>
#include <string_view>

namespace pptrain::io {

// Throws Error, which begins with `what` (the file, for a person), if the file's text is such a pointer.
void refuse_git_lfs_pointer(std::string_view text, const std::string& what);

}  // namespace pptrain::io
