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

#include "core/base/error.h"
#include "core/nn/slice.h"
#include "parallel/checkpoint/retention.h"
#include "parallel/comm/communicator.h"

namespace pptrain::checkpoint {

// The kind of file that holds the weights: `model.safetensors`. All others are an optimizer's.
inline constexpr const char* model_file = "model";

// What a resumed run needs beside tensors: small enough to print.
struct RunState {
  int64_t step = 0;            // steps done (skipped ones included)
  int64_t optimizer_step = 0;  // steps applied
  int64_t next_sample = 0;     // position in the sampler's order, over all data ranks
  int64_t tokens = 0;          // valid tokens trained on
  int64_t skipped = 0;         // steps skipped
  int64_t skipped_in_a_row = 0;
  uint64_t seed = 0;
  // Of the evaluation after this very step; none where there was none.
  std::optional<double> validation_loss = std::nullopt;
  // What the watch for divergence goes on with (core/fault/loss_watch.h): nothing where there is no watch.
  std::vector<double> recent_losses = {};  // within the band, the oldest first
  int64_t losses_above = 0;                // steps in a row above the band, up to this one
  int64_t above_since = 0;                 // the first of them; 0 where there are none
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

// What is the same in every save of a run.
struct SaveOptions {
  std::filesystem::path root;
  Layout layout = {};
  std::string job_toml = {};
  std::string given_toml = {};      // the keys of the job that were given alone
  int64_t keep_last_n = 0;          // the newest that stay; 0: all
  std::filesystem::path keep = {};  // one that stays whatever its age: what the run began with; "" for none
  int64_t keep_best_n = 0;          // those of the lowest validation losses, which stay whatever their age
  // Hears on rank 0 of what is no failure: an old checkpoint that cannot be removed. Default: a line of the
  // log.
  std::function<void(const std::string&)> warn = {};
  // Hears on rank 0, in the thread that saves, how each save of a Saver ended: the step, its folder, and why
  // it failed ("" where it did not).
  std::function<void(int64_t step, const std::filesystem::path& folder, const std::string& failure)> ended =
      {};
};

// What one save does that others of the run do not.
struct SaveTerms {
  bool is_last = false;     // of the run
  bool removes_old = true;  // false: no older checkpoint is deleted after it
  // Written as diverged_step_N, which is no name of a checkpoint to go on from; `latest` stays as it is.
  bool diverged = false;
  Scores scores = {};  // rank 0: the validation losses of checkpoints, this one's among them
};

// A save that failed, on every rank alike: what older checkpoints hold is untouched, and another save may
// succeed.
class NotSaved : public Error {
 public:
  using Error::Error;
};

// Writes `<root>/step_N`. Collective over `world`. Each element of each tensor is passed by one rank; a rank
// that has nothing to write (a replica's) passes no stage. Steps: every rank writes its files into
// `<root>/.tmp_step_N` and syncs them; what they hold is gathered to rank 0, which checks that the slices of
// each tensor are the whole tensor, writes and syncs the manifest, renames the folder and syncs: now the
// checkpoint exists. Then it points `latest` at it, and removes all but those that are kept (retention.h).
// Elements that no rank passed, or two did, are an error before anything is renamed. On any failure (disk
// full, unwritable) every rank throws NotSaved that says what and where; older checkpoints stay untouched. A
// step that is there already is replaced at once by the new one. What killed runs left behind (`.tmp_*`) is
// removed where it can be. A failure after the rename is a warning: the checkpoint is there.
//
// It returns when all is written. saver.h does the same while training goes on.
void save(comm::Communicator& world, const SaveOptions& options, const RunState& state,
          const std::vector<StageContents>& stages, const SaveTerms& terms = {});

// The ranks of `world` over a communicator that waits as long as a disk takes, not as long as a message
// should: for saves and loads, where one rank may be slower than the others by minutes. That a rank is gone
// is for others to find: its waits then end with PeerFailure. Collective.
std::unique_ptr<comm::Communicator> patient(comm::Communicator& world);

// A checkpoint that cannot be used, since it is damaged, incomplete or unreadable (a failing disk, missing
// rights). Another one may be sound.
class Unusable : public Error {
 public:
  using Error::Error;
};

// Tensors by kind of file, to be filled: what one rank wants of a checkpoint.
using Destinations = std::map<std::string, std::vector<NamedTensor>>;

// A complete checkpoint, open for reading by one thread. Only the bytes of tensors asked for are read.
class Reader {
 public:
  // Throws Unusable that names what is missing or wrong in the manifest, a header or a file's size.
  explicit Reader(const std::filesystem::path& step_dir);
  ~Reader();
  Reader(Reader&&) noexcept;

  const RunState& state() const;
  // There is no optimizer state (folder_writer.h): training from these weights begins with a new optimizer.
  bool weights_alone() const;
  bool contains(const std::string& file, const std::string& tensor) const;
  // The tensors of one kind of file, over all stages, sorted: what a model must ask for to have read
  // everything.
  std::vector<std::string> names(const std::string& file) const;
  // The whole tensor's shape, however it is stored. Throws Error that names the tensor if there is none.
  const std::vector<int64_t>& global_shape(const std::string& file, const std::string& tensor) const;

  // Fills `out` (any device; the stored type; wanted.numel() elements in any shape) from the stored slices
  // that `wanted` overlaps, whatever they are. A stored slice is checked whole, the first time that something
  // of it is read. Throws Unusable that names the tensor and the file where its checksum is wrong or the
  // bytes cannot be read (`out` is then half filled), and Error where there is no such tensor.
  void read(const std::string& file, const std::string& tensor, const nn::SliceShape& wanted,
            at::Tensor out) const;
  // The whole tensor, whose shape is out's.
  void read(const std::string& file, const std::string& tensor, at::Tensor out) const;

  // Fills what every rank wants, and checks every byte of the checkpoint, the ranks together. A stored slice
  // that some rank wants whole is checked by that rank as it is read, so that where ranks read what they have
  // saved, each byte is read once. Those that nobody wants whole are dealt over the ranks by their bytes,
  // and are not checked again when parts of them are read. Throws as read() does, on one rank or more:
  // see load_on_all. Collective.
  void read_shared(comm::Communicator& comm, const Destinations& wanted) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Every problem of a checkpoint, in words; empty when it is sound. Reads every byte.
std::vector<std::string> verify(const std::filesystem::path& step_dir);

// Checkpoints that were found to be unusable, by folder, each with the reason.
using KnownProblems = std::map<std::filesystem::path, std::string>;

// The newest checkpoint under `root` that may be sound: its manifest, all its files' sizes and headers, and
// what they hold of each tensor are right, and it is not among `known`. The bytes of tensors are checked
// where they are read. `latest` is for people and has no say. `report` hears of each one passed over and why;
// `known` takes it up, so that it hears of each once. Nothing when there are no checkpoints. Throws Error
// that names them all where there are some and none can be used, or where the folder cannot be read: what a
// run has done is then not lost, and nobody should begin anew over it.
std::optional<std::filesystem::path> find_resumable(const std::filesystem::path& root,
                                                    const std::function<void(const std::string&)>& report,
                                                    KnownProblems& known);
std::optional<std::filesystem::path> find_resumable(const std::filesystem::path& root,
                                                    const std::function<void(const std::string&)>& report);

// Opens the checkpoint on every rank and calls `load`. Returns the problem of the first rank on which one or
// the other threw Unusable, with the rank's number, the same text on all ranks; "" where none did. What else
// is thrown goes on. Collective; `load` may be, until it calls read_shared, which comes last.
std::string load_on_all(comm::Communicator& comm, const std::filesystem::path& step_dir,
                        const std::function<void(const Reader&)>& load);

// Proves that files can be written below `folder`, by writing, syncing and removing one; where the folder is
// not there yet, in the nearest folder above that is. Nothing stays. Throws Error that names the folder and
// the system's reason.
void probe(const std::filesystem::path& folder);
// The same on every rank, for `root`, which is created; proves too that all ranks see one folder there.
// Throws Error on every rank, with the first failing rank's reason. Collective.
void probe_shared(comm::Communicator& comm, const std::filesystem::path& root);

}  // namespace pptrain::checkpoint
