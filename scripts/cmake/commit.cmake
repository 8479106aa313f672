# cmake -DSOURCE=folder -DOUT=file -P commit.cmake: writes OUT, C++ that knows the commit of the checkout SOURCE, if that
# has changed. "" where SOURCE is no checkout, or there is no git.
set(commit "")
execute_process(COMMAND git -C ${SOURCE} rev-parse --show-toplevel OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                RESULT_VARIABLE status)
file(REAL_PATH ${SOURCE} here)
if(status STREQUAL "0" AND top STREQUAL here)
  execute_process(COMMAND git -C ${SOURCE} --no-optional-locks describe --always --exclude=* --abbrev=12 "--dirty=, with changes"
                  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
set(text "// Written by scripts/cmake/commit.cmake.
#include \"app/commands/commands.h\"

namespace pptrain::app {

const char* commit() {
  return \"${commit}\";
}

}  // namespace pptrain::app
")
set(before "")
if(EXISTS ${OUT})
  file(READ ${OUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUT} "${text}")
endif()
