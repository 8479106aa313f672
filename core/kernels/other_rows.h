// Loads the kernels of grouped GEMMs before they are needed, whatever the number of an expert's rows will be.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

namespace pptrain::kernels {

// While it lives, each grouped GEMM that its thread runs on a GPU is run for other numbers of an expert's
// rows too, on operands that mean nothing, once for each kind and shape. For cuBLAS chooses among kernels by
// the number of rows, and loads each at its first use, which waits for all that the GPU does. It ends on the
// thread that began it; of nested ones the innermost counts.
class OtherRows {
 public:
  explicit OtherRows(int64_t most);  // rows
  ~OtherRows();
  OtherRows(const OtherRows&) = delete;
  OtherRows& operator=(const OtherRows&) = delete;

  // The numbers of rows to run this GEMM for, ascending: all up to 64, and then 32 for each doubling. Empty
  // where it was asked for before, or without an OtherRows on this thread.
  static std::vector<int64_t> take(std::string_view kernel, at::ScalarType type, int64_t out, int64_t in);

 private:
  OtherRows* outer_;
  int64_t most_;
  std::set<std::tuple<std::string_view, at::ScalarType, int64_t, int64_t>> taken_;
};

}  // namespace pptrain::kernels
