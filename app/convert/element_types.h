// Conversion of elements between a file's type and the float32 of checkpoints, in chunks of a tensor.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>
#include <string>

namespace pptrain::app {

// `from`: elements of `type`, aligned to it; `to`: as many of float32. Throws Error, which begins with `what`
// (file and tensor), if to_type would not give back a value of `from` bit for bit: a NaN with a payload.
void to_float(at::ScalarType type, std::span<const std::byte> from, std::span<std::byte> to,
              const std::string& what);

// The nearest values of `type`. Throws Error, which begins with `what`, if a finite one becomes infinite.
void to_type(at::ScalarType type, std::span<const float> from, std::span<std::byte> to,
             const std::string& what);

}  // namespace pptrain::app
