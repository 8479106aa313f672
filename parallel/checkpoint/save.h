// One save: what its phases do. save() and Saver decide which thread runs them, and when.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/manifest.h"
#include "parallel/checkpoint/snapshot.h"
#include "parallel/checkpoint/step_folders.h"

namespace pptrain::checkpoint {

// One save of one rank. Its phases contain no communication, so that a rank that fails still takes part in
// the agreement after the phase, and all ranks leave together.
class Save {
 public:
  // All must outlive this.
  Save(comm::Communicator& world, const SaveOptions& options, const SaveTerms& terms, const RunState& state,
       Snapshot& snapshot);

  // Collective. Throws NotSaved.
  void run();

  // Where it is saved, once that is done. Rank 0's counts.
  const std::filesystem::path& target() const { return target_; }

 private:
  template <typename Phase>
  void agreed(const Phase& phase);

  void prepare();
  std::vector<FileEntry> write();
  std::vector<FileEntry> gather(const std::vector<FileEntry>& mine);
  void publish(const Manifest& manifest);
  void tidy() noexcept;

  bool is_root() const;
  std::filesystem::path free_name(const std::string& name) const;
  void warn(const std::string& text) const;
  void try_to_remove(const std::filesystem::path& path, const std::string& what) const;
  FileEntry write_file(const StageContents& stage, const std::string& file,
                       const std::vector<NamedTensor>& tensors);
  void name_best() const;
  void remove_old() const;
  void remove_checkpoint(const std::filesystem::path& folder) const;
  std::vector<StepFolder> removable() const;

  comm::Communicator& world_;
  const SaveOptions& options_;
  const SaveTerms& terms_;
  const RunState& state_;
  Snapshot& snapshot_;
  std::filesystem::path target_;
  std::filesystem::path temporary_;  // "" before prepare()
};

}  // namespace pptrain::checkpoint
