// Steps that are skipped: those whose loss or gradient norm is not finite, and those without a valid token.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

namespace pptrain::fault {

// Decides whether a step counts. It sees the global loss and norm, which have the same bits on every rank, so
// that all ranks decide alike.
class AnomalyGuard {
 public:
  // max_in_a_row: skipped steps in a row after which the run fails; 0: the first one fails it.
  explicit AnomalyGuard(int64_t max_in_a_row) : max_in_a_row_(max_in_a_row) {}

  // True where both are finite: apply the step. False: skip it. Throws Error with the last steps' figures
  // once more than max_in_a_row would have been skipped without a break. `where`: what is known of the place
  // of a step that is not finite, for the report.
  bool accept(double loss, double grad_norm, const std::string& where = {});

  // A step without a valid token: it is skipped and counted, but is no anomaly.
  void skip_empty() { ++total_; }

  int64_t in_a_row() const { return in_a_row_; }
  int64_t total() const { return total_; }
  void restore(int64_t in_a_row, int64_t total);

 private:
  struct Seen {
    double loss, grad_norm;
    std::string where;
  };
  int64_t max_in_a_row_;
  int64_t in_a_row_ = 0;
  int64_t total_ = 0;
  std::deque<Seen> last_;
};

}  // namespace pptrain::fault
