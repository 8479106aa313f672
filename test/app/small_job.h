// Small jobs that run in this process; their results are read back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "app/plan/plan.h"
#include "test/support/paths.h"

namespace pptrain::test {

namespace fs = std::filesystem;

// A folder that is removed with the test.
class TemporaryFolder {
 public:
  explicit TemporaryFolder(const fs::path& parent = fs::temp_directory_path()) {
    std::string name = (parent / "pptrain_test_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string content(const fs::path& file);

// Makes the file's folder too.
void write_file(const fs::path& file, const std::string& text);

std::set<std::string> names_in(const fs::path& folder);

using Overrides = std::vector<std::string>;  // "section.key=value"; the last one for a key counts

template <typename... More>
Overrides with(Overrides list, const More&... more) {
  (list.insert(list.end(), more.begin(), more.end()), ...);
  return list;
}
inline Overrides with(Overrides list, std::initializer_list<std::string> more) {
  list.insert(list.end(), more);
  return list;
}

inline const fs::path shakespeare = source_dir() / "configs/data/tinyshakespeare.txt";

std::string small_job_text(const fs::path& data = shakespeare);

// LongRoPE for the small job's heads: frequencies change above `length`; lengths go up to four times
// `length`.
Overrides longrope_up_to(int64_t length);
Overrides dynamic_rope(int64_t length);

struct JobResult {
  int exit_code = 0;
  std::vector<std::string> metrics;  // per line: values that must not depend on the layout, with all digits
  // "file/tensor" -> joined checksums of its slices in the newest checkpoint.
  std::map<std::string, std::string> checksums;
};

JobResult read_result(const fs::path& run_dir, int exit_code);

// The number of steps with a grad norm over `limit`. If train.grad_clip was `limit`, these were clipped.
int64_t steps_over(const JobResult& result, double limit);

app::Plan small_plan(const std::string& text, const fs::path& run_dir, Overrides overrides);

// Starts the job on thread ranks, with run.dir as it is.
JobResult start_plan(const app::Plan& plan);

// As start_plan, but removes run.dir first unless checkpoint.resume is auto.
JobResult run_plan(const app::Plan& plan);

JobResult run_small_job(const std::string& text, const fs::path& run_dir, const Overrides& overrides);

}  // namespace pptrain::test
