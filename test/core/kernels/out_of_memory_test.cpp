#include "core/kernels/out_of_memory.h"

#include <new>
#include <string>

#include "test/support/catch.h"
#include "test/support/ops.h"

using namespace pptrain;
using namespace pptrain::kernels;
using pptrain::test::contains_text;

namespace {

constexpr int64_t too_many = int64_t{1} << 48;  // bytes: more than any address space

template <typename Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return plain_message(error);
  }
  return "nothing thrown";
}

}  // namespace

TEST_CASE("memory that ran out is said with its use and its size") {
  const auto allocate = [] { return at::empty({too_many}, at::kByte); };
  try {
    allocate_for([] { return "weights of layers.3"; }, allocate);
    FAIL("that much memory");
  } catch (const OutOfMemory& error) {
    CHECK(std::string(error.what()) ==
          "weights of layers.3: 281474976710656 bytes (281474.98 GB) of host memory could not be allocated");
  }
  // From outside to inside: the innermost place is last.
  CHECK(message_of([&] {
          allocate_for([] { return "in F"; }, [&] { allocate_for([] { return "scratch"; }, allocate); });
        }) == "in F: scratch: 281474976710656 bytes (281474.98 GB) of host memory could not be allocated");
  CHECK_THROWS_AS(allocate_for([] { return "a list"; }, []() -> int { throw std::bad_alloc(); }),
                  OutOfMemory);
  CHECK(allocate_for([] { return "a tensor"; }, [] { return at::ones({3}).numel(); }) == 3);
}

TEST_CASE("other errors keep their kind, and lose LibTorch's frames") {
  const auto bad_product = [] { return at::matmul(at::ones({2, 3}), at::ones({2, 3})); };
  const std::string text = message_of(bad_product);
  CHECK_THAT(text, contains_text("shapes cannot be multiplied"));
  CHECK(text.find('\n') == std::string::npos);
  CHECK(text.find("frame #") == std::string::npos);
  CHECK_THROWS_WITH(allocate_for([] { return "weights"; }, []() -> int { throw UsageError("lr is wrong"); }),
                    "lr is wrong");
  CHECK_THROWS_AS(allocate_for([] { return "weights"; }, []() -> int { throw UsageError(""); }), UsageError);
  try {
    bad_product();
  } catch (const std::exception& error) {
    CHECK_FALSE(is_out_of_memory(error));
    CHECK_THROWS_WITH(throw_from("in F", error), contains_text("in F: mat1 and mat2"));
  }
}
