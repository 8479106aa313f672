// What LibTorch throws, in words for users: without C++ frames, and memory that ran out with what it was for.
#pragma once

#include <exception>
#include <string>

#include "core/base/error.h"

namespace pptrain::kernels {

// Memory of the host or of a GPU ran out; the message says for what, and how much was asked for if that is
// known.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// The first line of its message. Of a failed allocation: how much of which memory could not be allocated.
std::string plain_message(const std::exception& error);

bool is_out_of_memory(const std::exception& error);

// Throws OutOfMemory if memory ran out, else Error: "PLACE: message". Of nested calls the innermost place
// comes last.
[[noreturn]] void throw_from(const std::string& place, const std::exception& error);

// Calls `allocate`. If memory runs out in it, throws OutOfMemory that begins with what(); passes on other
// exceptions.
template <typename What, typename Allocate>
auto allocate_for(What&& what, Allocate&& allocate) {
  try {
    return allocate();
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) throw_from(what(), error);
    throw;
  }
}

}  // namespace pptrain::kernels
