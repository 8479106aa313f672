// pptrain --version
#pragma once

#include <string>

namespace pptrain::app {

// "pptrain X.Y.Z", and below it what the program is made of and what this machine offers it. `commit`: of the
// checkout that it was built from; "": of none. Makes no CUDA context, and needs no GPU.
std::string version_text(const std::string& commit);

}  // namespace pptrain::app
