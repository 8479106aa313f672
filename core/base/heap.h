// How the process treats large blocks of memory that it has freed.
#pragma once

#if defined(__GLIBC__) || __has_include(<malloc.h>)
#include <malloc.h>
#endif

#include <climits>

namespace pptrain {

// Freed blocks stay with the process. Otherwise glibc gives every block above 32 MiB back and takes it anew
// for each microbatch, and the system clears it page by page: 0.36 ms/MiB on a virtual machine, a tenth of
// the time of a layer of experts. Call it before the first large block.
inline void keep_freed_memory() {
#if defined(M_MMAP_THRESHOLD) && defined(M_TRIM_THRESHOLD)
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
#endif
}

}  // namespace pptrain
