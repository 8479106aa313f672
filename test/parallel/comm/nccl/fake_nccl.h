// In NCCL's place where NcclGroup is tested: communicators whose answers the test decides. Defines those of
// NCCL's functions that NcclGroup calls; a test executable with it has no other NCCL.
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
  int in_progress = 3;               // so many questions after a call are answered with ncclInProgress
  ncclResult_t state = ncclSuccess;  // and those that follow with this
  ncclResult_t state_after_end = ncclSuccess;  // once it has said that it is finalized
  std::string last_error;

  // --- what was seen ---
  std::vector<std::string> calls;  // "init", "call", "finalize", "destroy", "abort"
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int questions = 0;
  int alive = 0;        // communicators
  std::string misused;  // what NCCL forbids was done; "" for nothing

  mutable std::mutex mutex;  // of all of the above

  // What the test's bodies ask of NCCL.
  ncclResult_t begin(ncclComm_t comm, ncclResult_t result);
  template <typename Read>
  auto locked(Read&& read) {
    const std::lock_guard lock(mutex);
    return read(*this);
  }
};

// Starts anew: one at a time, as long as it lives.
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
