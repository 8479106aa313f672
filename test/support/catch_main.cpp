// Entry point of every test executable. A filter may also name a file ("[#layouts_test]"). A filter without a
// matching case is an error, even if another filter finds cases.
#if __has_include(<catch2/catch_session.hpp>)
#include <catch2/catch_session.hpp>
#else
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#endif
#include "test/support/end_process.h"

int main(int argc, char** argv) {
  Catch::Session session;
  session.configData().filenamesAsTags = true;
#ifdef CATCH_CONFIG_RUNNER
  session.configData().warnings = Catch::WarnAbout::NoTests;
#else
  session.configData().warnings = Catch::WarnAbout::UnmatchedTestSpec;
#endif
  if (const int bad_arguments = session.applyCommandLine(argc, argv)) return bad_arguments;
  const int code = session.run();
  if (std::getenv("PPTRAIN_MARGINS") != nullptr) return code;  // a destructor in bounds.cpp writes them
  pptrain::test::end_process(code);
}
