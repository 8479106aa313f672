// The options of [run].
#include <vector>

#include "core/config/data_sources.h"
#include "core/config/options/sections.h"

namespace pptrain::config {

void add_run(std::vector<Option>& options) {
  SectionFields<RunSection> run(options, "run", [](JobConfig& j) -> RunSection& { return j.run; });
  run("dir", &RunSection::dir,
      "Folder of the run's output: metrics.jsonl, job.toml and checkpoints/. One run at a time may use it. "
      "Like data.cache, it is relative to the current directory; paths that a job reads are relative to the "
      "job's file.")
      .path(Names::written)
      .decides(Effect::none);
  run("seed", &RunSection::seed, "Seed of the initial weights, of the order of the data and of samples.")
      .at_least(0)
      .only_if(
          "model.init = random, lora.rank > 0, data.shuffle = true, data.format = random or "
          "eval.generate_interval > 0",
          {"model.init", "lora.rank", "data.shuffle", "data.format", "eval.generate_interval"},
          [](const JobConfig& j) {
            return j.model.init == Init::random || j.lora.rank > 0 || j.data.shuffle || any_random(j) ||
                   j.eval.generate_interval > 0;
          })
      .decides(Effect::data);
  run("device", &RunSection::device, "Where the ranks compute.").decides(Effect::layout);
  run("threads", &RunSection::threads,
      "CPU threads of each rank. Results are equal to the bit only between runs with the same number.")
      .between(1, 4096)
      .decides(Effect::layout);
  run("force_memory", &RunSection::force_memory,
      "false: a job ends before it starts if its predicted memory exceeds its hosts' available memory or its "
      "GPUs' memory. true: the job starts, and may fail or be killed.")
      .decides(Effect::none);
}

}  // namespace pptrain::config
