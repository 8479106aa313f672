// Products and sums of sizes that come from outside, whose overflow is remembered instead of undefined.
#pragma once

#include <cstdint>

namespace pptrain {

// Acts as its number until a sum or product of it leaves 64 bits; all that is computed with it from then on
// fits nowhere.
class Checked {
 public:
  constexpr Checked(int64_t value = 0) : value_(value) {}  // numbers mix with it

  // Is it a number of at most `limit`?
  constexpr bool fits(int64_t limit = INT64_MAX) const { return !overflowed_ && value_ <= limit; }
  // Only if it fits.
  constexpr int64_t value() const { return value_; }

  friend constexpr Checked operator+(Checked a, Checked b) {
    Checked sum;
    sum.overflowed_ =
        __builtin_add_overflow(a.value_, b.value_, &sum.value_) || a.overflowed_ || b.overflowed_;
    return sum;
  }
  friend constexpr Checked operator*(Checked a, Checked b) {
    Checked product;
    product.overflowed_ =
        __builtin_mul_overflow(a.value_, b.value_, &product.value_) || a.overflowed_ || b.overflowed_;
    return product;
  }

 private:
  int64_t value_;
  bool overflowed_ = false;
};

}  // namespace pptrain
