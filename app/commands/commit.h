// Which commit the program was built from.
#pragma once

namespace pptrain::app {

// "1a2b3c4d5e6f", or "1a2b3c4d5e6f, with changes"; "" where the sources were no git checkout. Defined in a
// file that the build writes, and which belongs to the program alone: a commit compiles nothing else anew.
const char* commit();

}  // namespace pptrain::app
