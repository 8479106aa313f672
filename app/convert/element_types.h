// Elements between a file's type and the float32 of checkpoints, a piece of a tensor at a time.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>
#include <string>

namespace pptrain::app {

// `from`: elements of `type`, aligned to it; `to`: as many of float32. Throws Error, which begins with
// `what` (file and tensor), where `from` has a value that to_type would not give back bit for bit: a NaN that
// carries something.
void to_float(at::ScalarType type, std::span<const std::byte> from, std::span<std::byte> to,
              const std::string& what);

// The nearest values of `type`. Throws Error, which begins with `what`, where a finite one becomes infinite.
void to_type(at::ScalarType type, std::span<const float> from, std::span<std::byte> to,
             const std::string& what);

}  // namespace pptrain::app
