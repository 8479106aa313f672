// Loads the kernels of grouped GEMMs before they are needed, whatever the number of an expert's rows will be.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace pptrain::kernels {

// Does `work`. Each grouped GEMM that it runs on a GPU, on this thread, is run for other numbers of an
// expert's rows too, up to `most`, on operands that mean nothing, once for each kind and shape. For cuBLAS
// chooses among kernels by the number of rows, and loads each at its first use, which waits for all that the
// GPU does.
void with_other_rows(int64_t most, c10::function_ref<void()> work);

// The numbers of rows to run this GEMM for, ascending: all up to 64, and then 32 for each doubling. Empty if
// it was asked for before, or outside of with_other_rows on this thread.
std::vector<int64_t> take_other_rows(std::string_view kernel, at::ScalarType type, int64_t out, int64_t in);

}  // namespace pptrain::kernels
