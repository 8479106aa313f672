// What a step or an evaluation tells the world.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pptrain::metrics {

// Since 1970.
inline double unix_seconds(std::chrono::system_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

// "2026-01-31T23:59:59.123Z"
std::string utc_text(std::chrono::system_clock::time_point time);

// Reads that, to the millisecond, and "2026-01-31 23:59:59 UTC". Nothing if it is neither.
std::optional<std::chrono::system_clock::time_point> parse_utc(const std::string& text);

// What a start of a run, new or resumed, says of itself once: the first line that it writes to metrics.jsonl.
struct RunHeader {
  int64_t step = 0;        // that the start goes on from; 0: a new run
  std::string checkpoint;  // that it goes on from; empty: a new run
  std::chrono::system_clock::time_point time{};
  std::string version;  // of pptrain
  std::string host;     // of rank 0
  int64_t pid = 0;      // of rank 0
  std::string command;  // of rank 0, as a shell takes it
  std::string device;   // "cpu", or the GPU's name
  int64_t world_size = 1;
  std::map<std::string, std::string> layout;     // as in a checkpoint's manifest
  std::map<std::string, std::string> libraries;  // name -> version
};

// "3.7.1" of "Intel(R) MKL-DNN v3.7.1 (Git Hash ...)"; "" if there is no such number.
std::string version_number(const std::string& text);

// The libraries whose version can change a number, and the instruction set that LibTorch's CPU kernels use.
std::map<std::string, std::string> library_versions();

// Idle time as a fraction of the step, mean over all ranks. The whole is fill + steady + drain + barrier.
struct Bubble {
  double fill = 0;     // before a rank's first backward
  double steady = 0;   // between that and its last forward: stages that do not cost the same
  double drain = 0;    // from there to its last action
  double barrier = 0;  // from there to the end of the step, but for the rank's own work
  double wait = 0;     // the part of fill, steady and drain in which the input had been made elsewhere
  double total() const { return fill + steady + drain + barrier; }
};

// How many rows each expert of a sparse layer got in a step, from all ranks: [expert], by layer.
using ExpertLoads = std::map<int, std::vector<int64_t>>;
// For one layer: the largest by the mean; 1: all alike.
double imbalance(std::span<const int64_t> rows);

struct StepRecord {
  int64_t step = 0;      // 1 is the first
  double loss = 0;       // nats per valid token, over the global batch
  double grad_norm = 0;  // before clipping, over all stages
  double lr = 0;
  int64_t tokens = 0;           // valid tokens of this step, all ranks
  int64_t computed_tokens = 0;  // of its microbatches, all ranks: with those that have no target, and padding
  int64_t padding_tokens = 0;   // of these, tokens of no document
  double tokens_per_s = 0;
  double step_time_s = 0;
  double mfu = 0;             // 0..1, see models/flops.h; 0: the device's peak is not known
  double memory_gb = 0;       // peak so far: resident memory of this process, or allocated on its GPU
  bool skipped = false;       // loss or norm not finite, or no valid token: the weights did not move
  int64_t skipped_steps = 0;  // of the run so far
  int64_t total_tokens = 0;   // valid tokens of the run so far, those before a resume included
  double epoch = 0;           // passes over the training data so far, parts of one included
  double data_wait_s = 0;     // in which the step waited for its data, on rank 0
  double save_time_s = 0;     // in which training stood still to save, since the step before
  std::optional<int64_t> saved_step = std::nullopt;  // of the newest checkpoint that was complete by then
  std::chrono::system_clock::time_point time{};      // when the step was done; 1970: unknown
  std::optional<Bubble> bubble = std::nullopt;       // if it was measured
  ExpertLoads expert_loads = {};                     // of the sparse layers
  std::vector<double> microbatch_losses = {};        // as loss, of each microbatch; if asked for
  // Passes over each source by its name, if training data are of several.
  std::vector<std::pair<std::string, double>> source_epochs = {};
};

// What a validation found on one source.
struct SourceLoss {
  std::string name;  // "": the only one
  double sum = 0;    // nats, of all valid tokens
  int64_t tokens = 0;
  std::optional<int64_t> bytes = std::nullopt;  // of the text of the valid tokens, if that is known

  double loss() const;        // nats per valid token
  double perplexity() const;  // its exponential
  std::optional<double> bits_per_byte() const;
};

struct EvalRecord {
  int64_t step = 0;
  double loss = 0;  // nats per valid token
  int64_t tokens = 0;
  double time_s = 0;
  std::optional<double> bits_per_byte = std::nullopt;  // if the text's bytes are known
  std::vector<SourceLoss> sources = {};                // if there are several
  std::chrono::system_clock::time_point time{};        // when it was done; 1970: unknown
};

// --- Records as lines of metrics.jsonl: docs/metrics.md says what each key means.

// One JSON object on one line; floats with all their digits, null if not finite.
std::string to_json(const RunHeader& header);
std::string to_json(const StepRecord& record);
std::string to_json(const EvalRecord& record);
std::string to_json(const Bubble& bubble);  // {"bubble", "bubble_fill", ...}

}  // namespace pptrain::metrics
