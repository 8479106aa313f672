// Seconds of a pass, by cause.
#pragma once

#include <array>
#include <cstddef>
#include <numeric>

#include "core/kernels/cost.h"
#include "parallel/schedule/per_pass.h"

namespace pptrain::app {

struct PassTime {
  double compute = 0;
  std::array<double, kernels::wire_count> exposed{};  // [wire] the rank waits for other ranks
  std::array<double, kernels::wire_count> hidden{};   // [wire] ranks exchange while this one computes

  double waiting() const { return std::accumulate(exposed.begin(), exposed.end(), 0.0); }
  double total() const { return compute + waiting(); }

  // Scales the computing; exchanges take as long as before.
  PassTime scaled(double scale) const {
    PassTime result = *this;
    result.compute *= scale;
    return result;
  }

  // Without exchanges.
  PassTime alone() const { return {.compute = compute, .exposed = {}, .hidden = {}}; }

  PassTime& operator+=(const PassTime& other) { return add(other, 1); }
  PassTime& operator-=(const PassTime& other) { return add(other, -1); }
  friend PassTime operator+(PassTime a, const PassTime& b) { return a += b; }
  friend PassTime operator-(PassTime a, const PassTime& b) { return a -= b; }
  friend PassTime operator/(const PassTime& a, double count) { return PassTime().add(a, 1 / count); }

 private:
  PassTime& add(const PassTime& other, double sign) {
    compute += sign * other.compute;
    for (size_t wire = 0; wire < exposed.size(); ++wire) {
      exposed[wire] += sign * other.exposed[wire];
      hidden[wire] += sign * other.hidden[wire];
    }
    return *this;
  }
};

using StagePasses = schedule::PerPass<PassTime>;  // of one microbatch on one stage

}  // namespace pptrain::app
