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
//
// glibc unmaps an empty thread heap of 64 MiB (HEAP_MAX_SIZE) regardless of the trim threshold, unless the
// previous heap has less free space than M_TOP_PAD. Hence M_TOP_PAD is 64 MiB. It costs addresses, no memory.
inline void keep_freed_memory() {
#if defined(M_MMAP_THRESHOLD) && defined(M_TRIM_THRESHOLD) && defined(M_TOP_PAD)
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, INT_MAX);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

// The opposite, for a command that handles one tensor after the other: blocks from 64 KiB on go back to the
// system when freed. Else the heap, whose free blocks fit no other tensor well, may grow to all of the model.
inline void return_freed_memory() {
#if defined(M_MMAP_THRESHOLD) && defined(M_TRIM_THRESHOLD) && defined(M_TOP_PAD)
  mallopt(M_MMAP_THRESHOLD, 64 << 10);
  mallopt(M_TRIM_THRESHOLD, 64 << 10);
  mallopt(M_TOP_PAD, 0);
#endif
}

}  // namespace pptrain
