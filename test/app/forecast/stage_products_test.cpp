// The products that a dry run foretells, against those of real passes.
#include "app/forecast/footprint.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <set>
#include <string>
#include <vector>

#include "test/models/small_model.h"
#include "test/support/catch.h"

using namespace pptrain;
using namespace pptrain::test;
using kernels::Product;
using kernels::ProductLayout;

TEST_CASE("the products of all stages are those that their passes do") {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const std::string arch = GENERATE(as<std::string>{}, "llama", "qwen3", "qwen3_moe");
  const bool bfloat16 = GENERATE(false, true);
  const auto recompute = GENERATE(models::Recompute::none, models::Recompute::full);
  const auto model = small_model(arch, false);
  CAPTURE(arch, bfloat16);
  Stages stages = build_stages(model, {1, 2, 1}, bfloat16 ? at::kBFloat16 : at::kFloat, 7, recompute);
  const kernels::ProductRecord record;
  std::vector<models::StageSlice> slices;
  at::Tensor hidden;
  for (auto& stage : stages) {
    hidden = stage->forward(0, random_microbatch(model, 3, 7, 1), hidden);
    slices.push_back({.index = stage->index(),
                      .first_layer = stage->index() == 0   ? 0
                                     : stage->index() == 1 ? 1
                                                           : 3,
                      .end_layer = stage->index() == 0   ? 1
                                   : stage->index() == 1 ? 3
                                                         : 4,
                      .embedding = stage->is_first(),
                      .head = stage->is_last()});
  }
  at::Tensor gradient;
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage)
    gradient = (*stage)->backward(0, gradient);
  const app::BatchShape batch{
      .documents = 3, .length = 7, .bfloat16 = bfloat16, .recompute = recompute, .device = at::kCPU};
  const std::set<Product> foretold = app::products_of(model, slices, batch);
  CHECK((foretold == record.products()));
  // The head's three, by hand: 21 rows, 40 wide, 61 words.
  const at::ScalarType type = bfloat16 ? at::kBFloat16 : at::kFloat;
  CHECK(foretold.contains({ProductLayout::nt, type, 21, 61, 40, 40, false}));
  CHECK(foretold.contains({ProductLayout::nn, type, 21, 40, 61, 61, false}));
  CHECK(foretold.contains({ProductLayout::tn, type, 61, 40, 21, 61, false}));
}
