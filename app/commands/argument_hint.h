// How to write what somebody most likely meant by arguments that are refused.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace pptrain::app {

// `arguments`: of the command line, without the program's name; `refusal`: CLI11's, which names those that
// are not known. "a job is named so: --config job.toml"; empty where there is nothing to say.
std::string argument_hint(std::span<const std::string> arguments, std::string_view refusal);

}  // namespace pptrain::app
