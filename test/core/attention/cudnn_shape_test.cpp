#include "core/attention/cudnn/cudnn_shape.h"

#include <vector>

#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain::attention;

TEST_CASE("cudnn_shape: batches as they are, ragged documents in powers of two", "[attention]") {
  CHECK(cudnn_shape(3, 2048, 6144, true) == CudnnShape{3, 2048, 6144, false});
  CHECK(cudnn_shape(1, 64, 64, true) == CudnnShape{1, 64, 64, false});
  // Prompts of any length share plans.
  CHECK(cudnn_shape(1, 700, 700, true) == CudnnShape{1, 1024, 1024, true});
  CHECK(cudnn_shape(1, 901, 901, true) == cudnn_shape(1, 700, 700, true));
  CHECK(cudnn_shape(5, 1000, 4096, false) == CudnnShape{8, 1024, 4096, true});
  CHECK(cudnn_shape(8, 1024, 4097, false) == CudnnShape{8, 1024, 5120, true});
  CHECK(cudnn_shape(2, 3, 5, false) == CudnnShape{2, 128, 1024, true});
}

TEST_CASE("RaggedIndex: lengths and offsets, with empty documents at the end", "[attention]") {
  const at::Tensor starts = at::tensor(std::vector<int>{0, 3, 4, 9}, at::kInt);
  const RaggedIndex index(starts, 4, 9);
  const auto values = [](const at::Tensor& x) {
    CHECK(x.scalar_type() == at::kInt);
    CHECK(x.is_contiguous());
    return std::vector<int>(x.const_data_ptr<int>(), x.const_data_ptr<int>() + x.numel());
  };
  CHECK(values(index.starts) == std::vector<int>{0, 3, 4, 9, 9});
  CHECK(values(index.lengths) == std::vector<int>{3, 1, 5, 0});
  CHECK(values(index.offsets(6144)) == std::vector<int>{0, 18432, 24576, 55296, 55296});
  CHECK(values(RaggedIndex(starts, 3, 9).starts) == std::vector<int>{0, 3, 4, 9});
}
