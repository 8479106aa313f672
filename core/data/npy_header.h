// The header of NumPy's .npy files.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/io/files.h"
#include "core/io/mapped_file.h"

namespace pptrain::data {

struct NpyHeader {
  size_t bytes = 0;     // behind which the array lies
  int token_bytes = 0;  // 1, 2, 4 or 8
  bool is_signed = false;
  int64_t count = 0;
};

// Does the file begin as .npy files do?
bool has_npy_header(const io::RegularFile& file);

// Reads the header of an array of one dimension of little-endian integers (uint8 ... int64) that fills the
// file. (The format: numpy/lib/format.py, versions 1 to 3.) Throws Error that says what it is instead.
NpyHeader read_npy_header(const io::MappedFile& file);

}  // namespace pptrain::data
