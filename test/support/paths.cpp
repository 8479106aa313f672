#include "test/support/paths.h"

namespace pptrain::test {

std::filesystem::path source_dir() {
  return PPTRAIN_SOURCE_DIR;
}

std::filesystem::path build_dir() {
  return PPTRAIN_BUILD_DIR;
}

std::string mpiexec() {
  return PPTRAIN_MPIEXEC;
}

}  // namespace pptrain::test
