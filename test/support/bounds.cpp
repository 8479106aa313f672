#include "test/support/bounds.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <ostream>
#include <string>
#include <utility>

namespace pptrain::test {
namespace {

double part_of_bound(double difference, double bound) {
  if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  return difference == 0 ? 0 : difference / bound;
}

// Appends its lines when the program ends: "place<TAB>difference<TAB>bound<TAB>comparisons".
class Margins {
 public:
  explicit Margins(std::string file) : file_(std::move(file)) {}
  Margins(const Margins&) = delete;
  Margins& operator=(const Margins&) = delete;

  ~Margins() {
    std::string text;
    for (const auto& [place, worst] : places_) {
      char numbers[96];
      std::snprintf(numbers, sizeof numbers, "\t%.6g\t%.6g\t%lld\n", worst.difference, worst.bound,
                    static_cast<long long>(worst.count));
      text += place + numbers;
    }
    const int file = open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    // One write, so that lines of several processes do not mix.
    if (file < 0 || write(file, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      std::perror(file_.c_str());
    if (file >= 0) close(file);
  }

  void record(const Difference& difference, double bound) {
    const std::string place =
        std::string(difference.place().file_name()) + ":" + std::to_string(difference.place().line());
    const std::lock_guard lock(mutex_);
    Worst& worst = places_[place];
    const double part = part_of_bound(difference.value(), bound);
    if (worst.count++ > 0 && part <= worst.part) return;
    worst.part = part;
    worst.difference = difference.value();
    worst.bound = bound;
  }

 private:
  struct Worst {
    double difference = 0, bound = 0, part = 0;
    int64_t count = 0;
  };
  std::string file_;
  std::mutex mutex_;
  std::map<std::string, Worst> places_;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const Difference& difference) {
  return out << difference.value();
}

void record_bound(const Difference& difference, double bound) {
  static const char* const file = std::getenv("PPTRAIN_MARGINS");
  if (file == nullptr) return;
  static Margins margins(file);
  margins.record(difference, bound);
}

}  // namespace pptrain::test
