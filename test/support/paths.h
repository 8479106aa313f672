// Places of this checkout and build. One small file knows them, so a compiler cache serves every checkout
// with the other ones.
#pragma once

#include <filesystem>
#include <string>

namespace pptrain::test {

std::filesystem::path source_dir();
std::filesystem::path build_dir();  // of the programs
std::string mpiexec();              // "" in a build without MPI

}  // namespace pptrain::test
