// Checkpoints: `<dir>/step_N/stage_k/*.safetensors` and a manifest, complete or absent, written as slices by
// one layout and read as slices by any other.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/nn/slice.h"
#include "parallel/comm/communicator.h"

namespace pptrain::checkpoint {

// What a resumed run needs beside tensors: small enough to print.
struct RunState {
  int64_t step = 0;            // steps done (skipped ones included)
  int64_t optimizer_step = 0;  // steps applied
  int64_t next_sample = 0;     // position in the sampler's order, over all data ranks
  int64_t tokens = 0;          // valid tokens trained on
  int64_t skipped = 0;         // steps skipped
  int64_t skipped_in_a_row = 0;
  uint64_t seed = 0;
  friend bool operator==(const RunState&, const RunState&) = default;
};

// A parameter, one tensor of its optimizer state, or a slice of these.
struct NamedTensor {
  std::string name;      // "layers.0.attn.q.weight"
  nn::SliceShape slice;  // which of the whole tensor's elements these are
  at::Tensor tensor;     // any device and type; contiguous; slice.numel() elements in any shape
};

// The tensor is all of what it is named.
NamedTensor whole_tensor(std::string name, at::Tensor tensor);

// What one rank writes of one stage, by file: "model" -> model.safetensors, "adamw.exp_avg" -> ... A file has
// one tensor of a name, so a rank with two slices of one tensor passes two parts. Slices without elements are
// left out.
struct StageContents {
  int stage = 0;
  // Where several ranks (or one, more than once) write for a stage, each takes a part of its own, from 0 to
  // parts - 1: part 0 of 4 is written to model.00001-of-00004.safetensors.
  int part = 0;
  int parts = 1;
  std::map<std::string, std::vector<NamedTensor>> files;
};

// How the writing run was laid out: for people and for `verify`; reading needs none of it.
using Layout = std::map<std::string, std::string>;  // "pp" -> "2", "pp_schedule" -> "1f1b", ...

// Writes `<root>/step_N`. Collective over `world`. Each element of each tensor is passed by one rank; a rank
// that has nothing to write (a replica's) passes no stage. Steps: every rank writes its files into
// `<root>/.tmp_step_N` and syncs them; what they hold is gathered to rank 0, which checks that the slices of
// each tensor are the whole tensor, writes and syncs the manifest, renames the folder, syncs, points `latest`
// at it, and removes all but the newest `keep_last_n` (0: keeps all). Elements that no rank passed, or two
// did, are an error before anything is renamed. On any failure (disk full, unwritable) every rank throws
// Error that says what and where; older checkpoints stay untouched. A step that is there already is replaced
// at once by the new one. What killed runs left behind (`.tmp_*`) is removed.
void save(comm::Communicator& world, const std::filesystem::path& root, const RunState& state,
          const Layout& layout, const std::string& job_toml, const std::vector<StageContents>& stages,
          int64_t keep_last_n);

// A complete checkpoint, open for reading by one thread. Files are memory-mapped; only the bytes of tensors
// asked for are read.
class Reader {
 public:
  // Throws Error that names what is missing or wrong in the manifest, a header or a file's size.
  explicit Reader(const std::filesystem::path& step_dir);
  ~Reader();
  Reader(Reader&&) noexcept;

  const RunState& state() const;
  const Layout& layout() const;
  bool contains(const std::string& file, const std::string& tensor) const;
  // The tensors of one kind of file, over all stages, sorted: what a model must ask for to have read
  // everything.
  std::vector<std::string> names(const std::string& file) const;
  // The whole tensor's shape, however it is stored. Throws Error that names the tensor if there is none.
  const std::vector<int64_t>& global_shape(const std::string& file, const std::string& tensor) const;

  // Fills `out` (any device; the stored type; wanted.numel() elements in any shape) from the stored slices
  // that `wanted` overlaps, whatever they are, after the checksum of each of them proved right. A stored
  // slice is checked whole, the first time that something of it is read. Throws Error that names the tensor
  // and the file.
  void read(const std::string& file, const std::string& tensor, const nn::SliceShape& wanted,
            at::Tensor out) const;
  // The whole tensor, whose shape is out's.
  void read(const std::string& file, const std::string& tensor, at::Tensor out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Every problem of a checkpoint, in words; empty when it is sound. Reads every byte.
std::vector<std::string> verify(const std::filesystem::path& step_dir);

// The newest sound checkpoint under `root`: `latest` if it is sound, else the newest other one. `report`
// hears of each one passed over and why. Nothing when there is none.
std::optional<std::filesystem::path> find_resumable(const std::filesystem::path& root,
                                                    const std::function<void(const std::string&)>& report);

}  // namespace pptrain::checkpoint
