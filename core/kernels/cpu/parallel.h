// Threads inside one kernel (at::get_num_threads of them), with results that do not depend on their number.
#pragma once

#include <c10/util/FunctionRef.h>

#include <cstdint>

namespace pptrain::kernels::cpu {

// Calls body(first, last) over disjoint ranges that cover [0, size), at least `grain` each, on several
// threads or this one.
void parallel_for(int64_t size, int64_t grain, c10::function_ref<void(int64_t, int64_t)> body);

// How many threads a kernel of so many multiply-adds may divide its work among; 1 inside of a parallel_for.
int64_t threads(int64_t operations);

// Rows (of `width` elements) that are worth a thread.
int64_t row_grain(int64_t width);

// Calls loop(args, first, last) over ranges that cover `rows` rows of `width` elements, as parallel_for.
template <class Args>
void for_rows(void (*loop)(const Args&, int64_t, int64_t), const Args& args, int64_t rows, int64_t width) {
  parallel_for(rows, row_grain(width), [&](int64_t first, int64_t last) { loop(args, first, last); });
}

// out (float [width]) += sums over `size` rows: body(block_sum, first, last) adds rows [first, last) into
// block_sum. Rows are added in blocks of a fixed size, and the blocks' sums in order.
void blocked_sum(int64_t size, int64_t width, float* out,
                 c10::function_ref<void(float*, int64_t, int64_t)> body);

}  // namespace pptrain::kernels::cpu
