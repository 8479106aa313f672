// Tensors as they are now, to be written while training goes on.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"

namespace pptrain::checkpoint {

// Copy on write, by request: construction copies nothing, and protect() copies what has not been read by
// then. On a GPU, keep_host_copies() starts copies to pinned host memory instead.
//
// Two threads: one reads, the other calls protect().
class Snapshot {
 public:
  // The tensors must not change before protect(), nor may the device's current stream change them.
  explicit Snapshot(std::vector<StageContents> stages);

  const std::vector<StageContents>& stages() const { return stages_; }

  // Starts to copy all device tensors into pinned host memory, on `side`, which is taken if there is none
  // yet. It is for all copies of a rank: LibTorch hands out 32 streams in turn, and one of them is for weight
  // gradients.
  void keep_host_copies(std::optional<c10::Stream>& side);

  // Reads bytes of a tensor of stages(), from `begin` on, as they were. Each tensor is read in ascending
  // order, each byte once; what has been read is forgotten.
  void read(const NamedTensor& tensor, uint64_t begin, std::span<std::byte> out);

  // From here on the tensors may change. Takes as long as copying what has not been read, never as long as
  // writing it. On a GPU the current stream waits for the copies.
  void protect();

  uint64_t copied_bytes() const { return copied_bytes_; }  // by protect()

 private:
  struct Held {
    at::Tensor source;   // flat: the tensor itself, or a copy of its rest
    uint64_t begin = 0;  // the tensor's byte that is source's first
    uint64_t next = 0;   // the first byte not read
  };
  uint64_t copy_rest(Held& held);

  std::vector<StageContents> stages_;
  std::mutex mutex_;  // guards what follows
  std::unordered_map<const NamedTensor*, Held> held_;
  bool protected_ = false;
  std::optional<c10::Event> written_;  // on a GPU: what the current stream held at first
  std::optional<c10::Event> on_host_;  // keep_host_copies() is done
  std::optional<c10::Device> device_;
  uint64_t copied_bytes_ = 0;
};

// One save of one rank (checkpoint.h, save). Returns the checkpoint's folder; only rank 0's is valid.
// Collective over `world`. Throws NotSaved.
std::filesystem::path save_snapshot(comm::Communicator& world, const SaveOptions& options,
                                    const SaveTerms& terms, const RunState& state, Snapshot& snapshot);

}  // namespace pptrain::checkpoint
