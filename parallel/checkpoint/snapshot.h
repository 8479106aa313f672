// Tensors as they are now, to be written while training goes on.
#pragma once

#include <ATen/core/Tensor.h>
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
// then.
//
// Two threads: one reads, the other calls protect().
class Snapshot {
 public:
  // The tensors must not change before protect(), nor may the device's current stream change them. Both
  // threads copy from a GPU on `side`, which is taken if there is none: then one stream serves all snapshots
  // of a rank. LibTorch hands out 32 in turn, and one of them is for weight gradients.
  Snapshot(std::vector<StageContents> stages, std::optional<c10::Stream>& side);

  const std::vector<StageContents>& stages() const { return stages_; }

  // Reads bytes of a tensor of stages(), from `begin` on, as they were. Each tensor is read in ascending
  // order, each byte once; what has been read is forgotten.
  void read(const NamedTensor& tensor, uint64_t begin, std::span<std::byte> out);

  // From here on the tensors may change. Takes as long as copying what has not been read, never as long as
  // writing it. A GPU meanwhile goes on with what it has been given; 64 MiB of the host's memory are pinned.
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
  std::optional<c10::Stream> side_;  // behind what wrote the tensors; nothing without a GPU
  uint64_t copied_bytes_ = 0;
};

// One save of one rank (checkpoint.h, save). Returns the checkpoint's folder; only rank 0's is valid.
// Collective over `world`. Throws NotSaved.
std::filesystem::path save_snapshot(comm::Communicator& world, const SaveOptions& options,
                                    const SaveTerms& terms, const RunState& state, Snapshot& snapshot);

}  // namespace pptrain::checkpoint
