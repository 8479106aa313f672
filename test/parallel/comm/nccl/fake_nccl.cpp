#include "test/parallel/comm/nccl/fake_nccl.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

// NCCL's own opaque type.
struct ncclComm {
  std::atomic<int> inside = 0;  // threads in a call on it
  int left = 0;                 // questions until it is ready
  bool finalized = false;
  bool told_end = false;  // it has reported that it is finalized
  bool ended = false;
};

namespace pptrain::comm::test {
namespace {

FakeNccl* current = nullptr;
std::vector<std::unique_ptr<ncclComm>> comms;  // never freed while the fake lives, so that misuse is seen

// A call on a communicator. NCCL demands that no two calls overlap and that none comes after its end.
class Call {
 public:
  Call(ncclComm_t comm, const char* name) : comm_(comm) {
    const std::lock_guard lock(current->mutex);
    if (comm->ended) current->misused = std::string(name) + " after the end";
    if (++comm->inside > 1) current->misused = std::string(name) + " beside another call";
  }
  ~Call() {
    std::this_thread::yield();  // lets other calls overlap, if the code allows it
    --comm_->inside;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  ncclComm_t comm_;
};

ncclResult_t end(ncclComm_t comm, const char* name) {
  const Call call(comm, name);
  const std::lock_guard lock(current->mutex);
  current->calls.emplace_back(name);
  comm->ended = true;
  --current->alive;
  return ncclSuccess;
}

}  // namespace

ncclResult_t FakeNccl::begin(ncclComm_t comm, ncclResult_t result) {
  const Call call(comm, "a call");
  const std::lock_guard lock(mutex);
  calls.emplace_back("call");
  comm->left = in_progress;
  return result;
}

FakeNcclScope::FakeNcclScope() {
  comms.clear();
  current = &fake_;
}

FakeNcclScope::~FakeNcclScope() {
  current = nullptr;
}

}  // namespace pptrain::comm::test

using pptrain::comm::test::Call;
using pptrain::comm::test::comms;
using pptrain::comm::test::current;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 1, sizeof(*id));
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "unhandled system error";
}

const char* ncclGetLastError(ncclComm_t /*comm*/) {
  return current->last_error.c_str();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int /*size*/, ncclUniqueId /*id*/, int /*rank*/,
                                    ncclConfig_t* config) {
  const std::lock_guard lock(current->mutex);
  current->calls.emplace_back("init");
  current->config = *config;
  *comm = nullptr;
  if (current->init_result != ncclInProgress) return current->init_result;
  *comm = comms.emplace_back(std::make_unique<ncclComm>()).get();
  (*comm)->left = current->in_progress;
  ++current->alive;
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const Call call(comm, "a question");
  const std::lock_guard lock(current->mutex);
  ++current->questions;
  if (comm->left != 0) {
    if (comm->left > 0) --comm->left;
    *state = ncclInProgress;
  } else if (!comm->finalized || std::exchange(comm->told_end, true)) {
    *state = comm->finalized ? current->state_after_end : current->state;
  } else {
    *state = ncclSuccess;
  }
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const Call call(comm, "finalize");
  const std::lock_guard lock(current->mutex);
  current->calls.emplace_back("finalize");
  comm->finalized = true;
  comm->left = current->in_progress;
  return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return pptrain::comm::test::end(comm, "destroy");
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return pptrain::comm::test::end(comm, "abort");
}

}  // extern "C"
