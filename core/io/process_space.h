// Names for temporary files that no other process takes, in other containers that share the folder either.
#pragma once

#include <string>

namespace pptrain::io {

// 16 hexadecimal digits of what process ids are unique in: this start of the machine's kernel and this
// process's namespace of ids. Two containers may both run a process 7, with the same host name.
const std::string& process_space();

// "SPACE.PID.N": another one at each call.
std::string unique_suffix();

}  // namespace pptrain::io
