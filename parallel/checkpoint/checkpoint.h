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
#include "parallel/checkpoint/hosts.h"
#include "parallel/checkpoint/retention.h"
#include "parallel/comm/communicator.h"

namespace pptrain::checkpoint {

// The kind of file that holds the weights: `model.safetensors`. All others are an optimizer's.
inline constexpr const char* model_file = "model";

// What a resumed run needs in addition to tensors: small enough to print.
struct RunState {
  int64_t step = 0;            // steps done (skipped ones included)
  int64_t optimizer_step = 0;  // steps applied
  int64_t next_sample = 0;     // position in the sampler's order, over all data ranks
  int64_t tokens = 0;          // valid tokens trained on
  int64_t skipped = 0;         // steps skipped
  int64_t skipped_in_a_row = 0;
  uint64_t seed = 0;
  // The loss of the evaluation after this very step; none if there was no evaluation.
  std::optional<double> validation_loss = std::nullopt;
  // State of the watch for divergence (core/fault/loss_watch.h); empty and 0 without a watch.
  std::vector<double> recent_losses = {};  // within the band, the oldest first
  int64_t losses_above = 0;                // steps in a row above the band, up to this one
  int64_t above_since = 0;                 // the first of them; 0 for none
  friend bool operator==(const RunState&, const RunState&) = default;
};

// A parameter, one tensor of its optimizer state, or a slice of these.
struct NamedTensor {
  std::string name;      // "layers.0.attn.q.weight"
  nn::SliceShape slice;  // which of the whole tensor's elements these are
  at::Tensor tensor;     // any device and type; contiguous; slice.numel() elements in any shape
};

// What one rank writes of one stage, by file: "model" -> model.safetensors, "adamw.exp_avg" -> ... A file
// holds one tensor of a name, so a rank with two slices of one tensor passes two parts. Slices without
// elements are left out.
struct StageContents {
  int stage = 0;
  // If several ranks (or one, more than once) write for a stage, each has a part number of its own, from 0 to
  // parts - 1: part 0 of 4 is written to model.00001-of-00004.safetensors.
  int part = 0;
  int parts = 1;
  std::map<std::string, std::vector<NamedTensor>> files;
};

// How the writing run was laid out: for users and for `verify`; reading needs none of it.
using Layout = std::map<std::string, std::string>;  // "pp" -> "2", "pp_schedule" -> "1f1b", ...

// What is the same in every save of a run.
struct SaveOptions {
  std::filesystem::path root;
  // With several: `root` is a folder of each host alone, and holds the files of its ranks and of another
  // host's ranks. A step is complete once all hosts have it, and only then the one before goes.
  Hosts hosts = {};
  Layout layout = {};
  std::string job_toml = {};
  std::string given_toml = {};      // only the keys of the job that were given
  int64_t keep_last_n = 0;          // the newest so many stay; 0: all
  std::filesystem::path keep = {};  // stays whatever its age: what the run began with; "" for none
  int64_t keep_best_n = 0;          // so many with the lowest validation losses stay whatever their age
  // Called on rank 0 with what is not a failure: an old checkpoint that cannot be removed. Default: a line of
  // the log.
  std::function<void(const std::string&)> warn = {};
  // Called on rank 0, in the thread that saves, before the checkpoint exists: what belongs to its step gets
  // on the device.
  std::function<void()> before_publish = {};
  // Called on rank 0, in the thread that saves, when a save of a Saver has ended: with the step, its folder,
  // and why it failed ("" if it did not).
  std::function<void(int64_t step, const std::filesystem::path& folder, const std::string& failure)> ended =
      {};
};

// What one save does differently from other saves of the run.
struct SaveTerms {
  bool is_last = false;     // of the run
  bool removes_old = true;  // false: no older checkpoint is deleted after it
  // Written as diverged_step_N, which is no name of a checkpoint to go on from; `latest` stays as it is.
  bool diverged = false;
  Scores scores = {};  // rank 0: the validation losses of checkpoints, this one's among them
};

// A save failed, on every rank alike. Older checkpoints are untouched, and another save may succeed.
class NotSaved : public Error {
 public:
  using Error::Error;
};

// Writes `<root>/step_N`. Collective over `world`. Each element of each tensor is passed by one rank; a rank
// that has nothing to write (a replica) passes no stage. Steps: every rank writes its files into
// `<root>/.tmp_step_N` and syncs them. Rank 0 gathers the lists of their contents and checks that the slices
// of each tensor are the whole tensor. It writes and syncs the manifest, renames the folder and syncs: now
// the checkpoint exists. Then it points `latest` at it, and removes all but those that are kept
// (retention.h). Elements that no rank passed, or two did, are an error before anything is renamed. On any
// failure (disk full, unwritable) every rank throws NotSaved that says what and where; older checkpoints stay
// untouched. A step that is there already is replaced at once by the new one. What killed runs left behind
// (`.tmp_*`) is removed if possible. A failure after the rename is a warning: the checkpoint is there.
//
// It returns when all is written. saver.h does the same while training goes on.
void save(comm::Communicator& world, const SaveOptions& options, const RunState& state,
          const std::vector<StageContents>& stages, const SaveTerms& terms = {});

// The ranks of `world` over a communicator whose timeout fits disks, not messages: for saves and loads, in
// which one rank may be slower than the others by minutes. It does not detect dead ranks itself: others do,
// and its waits then end with PeerFailure. Collective.
std::unique_ptr<comm::Communicator> disk_communicator(comm::Communicator& world);

// A checkpoint cannot be used, since it is damaged, incomplete or unreadable (a failing disk, missing
// rights). Another one may be sound.
class Unusable : public Error {
 public:
  using Error::Error;
};

// Tensors to be filled, by kind of file: what one rank wants from a checkpoint.
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
  // The tensors of one kind of file, over all stages, sorted: the list that a model must ask for to read
  // everything.
  std::vector<std::string> names(const std::string& file) const;
  // The whole tensor's shape, however it is stored. Throws Error that names the tensor if there is none.
  const std::vector<int64_t>& global_shape(const std::string& file, const std::string& tensor) const;

  // Fills `out` (any device; the stored type; wanted.numel() elements in any shape) from the stored slices
  // that `wanted` overlaps, whatever they are. A stored slice is checked whole, the first time that a part of
  // it is read. Throws Unusable that names the tensor and the file if its checksum is wrong or the bytes
  // cannot be read (`out` is then half filled), and Error if there is no such tensor.
  void read(const std::string& file, const std::string& tensor, const nn::SliceShape& wanted,
            at::Tensor out) const;
  // The whole tensor; it has the shape of `out`.
  void read(const std::string& file, const std::string& tensor, at::Tensor out) const;

  // Fills what every rank wants, and checks every byte of the checkpoint, the ranks together. If a rank wants
  // a stored slice whole, it checks the slice as it reads it: if ranks read what they have saved, each byte
  // is read once. Slices that no rank wants whole are dealt over the ranks by their bytes, and are not
  // checked again when parts of them are read. Throws as read() does, on one rank or more: see load_on_all.
  // Collective.
  void read_shared(comm::Communicator& comm, const Destinations& wanted) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Every problem of a checkpoint, in words; empty when it is sound. Reads every byte.
std::vector<std::string> verify(const std::filesystem::path& step_dir);

// Checkpoints that were found to be unusable, by folder, each with the reason.
using KnownProblems = std::map<std::filesystem::path, std::string>;

// The newest checkpoint under `root` that may be sound and is not in `known`: its manifest, all its files'
// sizes and headers, and the list of slices of each tensor are right. The bytes of tensors are checked when
// they are read. `latest` is for users and has no say. `report` is called once for each one passed over, with
// the reason, which is added to `known`. Nothing when there are no checkpoints. If there are some and none
// can be used, or if the folder cannot be read, throws Error that names them all: the run's work is not lost,
// and no new run should overwrite it.
std::optional<std::filesystem::path> find_resumable(const std::filesystem::path& root,
                                                    const std::function<void(const std::string&)>& report,
                                                    KnownProblems& known);
std::optional<std::filesystem::path> find_resumable(const std::filesystem::path& root,
                                                    const std::function<void(const std::string&)>& report);

// Opens the checkpoint on every rank and calls `load`. Returns the problem of the first rank on which one or
// the other threw Unusable, with the rank's number, the same text on all ranks; "" if none did. Other
// exceptions pass through. Collective; `load` may be too, if read_shared is its last collective call.
std::string load_on_all(comm::Communicator& comm, const std::filesystem::path& step_dir,
                        const std::function<void(const Reader&)>& load);

// Proves that files can be written below `folder`, by writing, syncing and removing one; if the folder does
// not exist yet, in the nearest folder above that does. Leaves nothing. Throws Error that names the folder
// and the system's reason.
void probe(const std::filesystem::path& folder);
// The same on every rank, for `root`, which is created; proves too that all ranks see one folder there.
// Throws Error on every rank, with the first failing rank's reason. Collective.
void probe_shared(comm::Communicator& comm, const std::filesystem::path& root);

}  // namespace pptrain::checkpoint
