// Catch2, version 3 or 2 of the system.
#pragma once

#include <string>

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
namespace pptrain::test {
using EventListener = Catch::EventListenerBase;
inline auto contains_text(const std::string& text) {
  return Catch::Matchers::ContainsSubstring(text);
}
}  // namespace pptrain::test
#else
#include <catch2/catch.hpp>
namespace pptrain::test {
#ifdef CATCH_CONFIG_EXTERNAL_INTERFACES
using EventListener = Catch::TestEventListenerBase;
#endif
inline auto contains_text(const std::string& text) {
  return Catch::Matchers::Contains(text);
}
}  // namespace pptrain::test
#endif
