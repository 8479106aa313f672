#include "core/io/git_lfs.h"

#include <spdlog/fmt/fmt.h>

#include "core/base/error.h"

namespace pptrain::io {

void refuse_git_lfs_pointer(std::string_view text, const std::string& what) {
  if (!text.starts_with("version https://git-lfs.github.com/spec/")) return;
  throw Error(fmt::format(
      "{} is a git-LFS pointer, not the file itself: fetch it with `git lfs pull` in its folder", what));
}

}  // namespace pptrain::io
