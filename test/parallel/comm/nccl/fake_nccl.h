// Replaces NCCL in the tests of NcclGroup: the test decides the communicators' answers. Defines the NCCL
// functions that NcclGroup calls; a test executable with it has no other NCCL.
#pragma once

#include <nccl.h>

#include <mutex>
#include <string>
#include <vector>

namespace pptrain::comm::test {

struct FakeNccl {
  static constexpr int for_ever = -1;

  // --- the script ---
  ncclResult_t init_result = ncclInProgress;
  int in_progress = 3;               // number of questions after a call with the answer ncclInProgress
  ncclResult_t state = ncclSuccess;  // the answer to later questions
  ncclResult_t state_after_end = ncclSuccess;  // the answer after it has reported that it is finalized
  std::string last_error;

  // --- observations ---
  std::vector<std::string> calls;  // "init", "call", "finalize", "destroy", "abort"
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int questions = 0;
  int alive = 0;        // communicators
  std::string misused;  // a use that NCCL forbids; "" for none

  mutable std::mutex mutex;  // for all of the above

  // The calls of the test's bodies.
  ncclResult_t begin(ncclComm_t comm, ncclResult_t result);
  template <typename Read>
  auto locked(Read&& read) {
    const std::lock_guard lock(mutex);
    return read(*this);
  }
};

// Installs a new fake while it lives; only one at a time.
class FakeNcclScope {
 public:
  FakeNcclScope();
  ~FakeNcclScope();
  FakeNcclScope(const FakeNcclScope&) = delete;
  FakeNcclScope& operator=(const FakeNcclScope&) = delete;

  FakeNccl& operator*() { return fake_; }
  FakeNccl* operator->() { return &fake_; }

 private:
  FakeNccl fake_;
};

}  // namespace pptrain::comm::test
