// The options of [checkpoint].
#include <vector>

#include "core/config/options/sections.h"

namespace pptrain::config {
namespace {

bool validates(const JobConfig& job) {
  return job.eval.interval > 0;
}

}  // namespace

void add_checkpoint(std::vector<Option>& options) {
  SectionFields<CheckpointSection> checkpoint(
      options, "checkpoint", [](JobConfig& j) -> CheckpointSection& { return j.checkpoint; }, Effect::none);
  checkpoint(
      "interval", &CheckpointSection::interval,
      "Steps between checkpoints. 0: only by checkpoint.minutes, at the end, and when stopped by a signal.")
      .between(0, max_steps);
  checkpoint("minutes", &CheckpointSection::minutes,
             "Minutes from the last checkpoint to the next one. 0: none by time.")
      .between(0, 1e6);
  checkpoint(
      "memory_seconds", &CheckpointSection::memory_seconds,
      "Keeps copies of the newest states in the host's memory (/dev/shm), at most once in so many "
      "seconds. If the processes die, a start of the same run goes on from the newest one (torchrun starts "
      "them by itself). Takes three times the fp32 weights and optimizer state. The copies go "
      "when the run ends. Each of several hosts keeps the parts of its ranks and of another host's. 0: none.")
      .between(0, 1e6);
  checkpoint("async", &CheckpointSection::async,
             "true: training goes on while checkpoints are written. Tensors not yet written are copied "
             "before the next step changes them, so a rank may need host memory for its fp32 weights and "
             "optimizer state again. false: training waits.");
  checkpoint("keep_last_n", &CheckpointSection::keep_last_n,
             "Newest checkpoints kept; older ones are deleted. 0: all.")
      .between(0, max_steps);
  checkpoint("keep_best_n", &CheckpointSection::keep_best_n,
             "Number of checkpoints with the lowest validation losses that are kept in addition to the "
             "newest ones. An evaluation among the best saves a checkpoint of its step. The file "
             "checkpoints/best has the best one's name. 0: none.")
      .between(0, max_steps)
      .only_if("eval.interval > 0", {"eval.interval"}, validates);
  checkpoint(
      "resume", &CheckpointSection::resume,
      "What the first start in run.dir begins with. none or auto: a new model. A path: a checkpoint, "
      "or a folder of checkpoints. Later starts ignore these values and resume from the newest sound "
      "checkpoint of run.dir, so the same command always resumes. restart: moves checkpoints, metrics and "
      "other files of the earlier run aside (checkpoints.1, metrics.1.jsonl, ...) and starts over. "
      "Exception: an unfinished run of this same job (its layout may differ) that began with restart is "
      "resumed.")
      .path()
      .such_as({"auto", "none", "restart"});
  checkpoint("data", &CheckpointSection::data,
             "What to do if the data or their order (data.*, train.seq_len, run.seed) differ from the "
             "checkpoint's. same: the start is refused. continue: goes on at the same sample number of the "
             "new order. restart: begins with the new order's first sample.");
}

}  // namespace pptrain::config
