// A small training state over several ranks, for checkpoint tests. Every value depends only on the tensor's
// name and the step, so any rank knows the values it must read back.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "test/core/io/scratch_folder.h"
#include "test/support/ops.h"

namespace pptrain::test {

inline constexpr int layers = 6;

inline at::Tensor example_tensor(const std::string& file, const std::string& name, int64_t step) {
  const auto seed = static_cast<int64_t>(std::hash<std::string>{}(file + "/" + name) % 1000);
  const int64_t rows = name.ends_with("norm.weight") ? 1 : 3;
  const auto dtype = file == "model" ? at::kFloat : at::kBFloat16;
  return at::arange(seed + step, seed + step + rows * 5, at::kFloat).view({rows, 5}).to(dtype);
}

inline std::vector<std::string> example_names(int layer) {
  const std::string prefix = "layers." + std::to_string(layer) + ".";
  return {prefix + "attn.q.weight", prefix + "norm.weight"};
}

inline const std::vector<std::string> example_files{"adamw.exp_avg", "model"};

// The tensor holds all elements of what it is named.
inline checkpoint::NamedTensor whole_tensor(std::string name, at::Tensor tensor) {
  nn::SliceShape slice = nn::whole_slice(tensor.sizes().vec());
  return {.name = std::move(name), .slice = std::move(slice), .tensor = std::move(tensor)};
}

// The stage's layers when they are split evenly over `stages`.
inline checkpoint::StageContents example_stage(int stage, int stages, int64_t step) {
  checkpoint::StageContents contents{.stage = stage, .files = {}};
  for (int layer = layers * stage / stages; layer < layers * (stage + 1) / stages; ++layer) {
    for (const std::string& file : example_files) {
      for (const std::string& name : example_names(layer)) {
        contents.files[file].push_back(whole_tensor(name, example_tensor(file, name, step)));
      }
    }
  }
  return contents;
}

inline checkpoint::RunState example_state(int64_t step) {
  return {.step = step,
          .optimizer_step = step - 1,
          .next_sample = 12 * step,
          .tokens = 100 * step,
          .skipped = 1,
          .skipped_in_a_row = 0,
          .seed = 0xfedcba9876543210u};
}

inline const std::string example_job = "[run]\nseed = 1  # \"quoted\" \xc3\xa9\n";

// Saves as `pp` ranks with one stage each, and `idle` ranks that hold copies and write nothing.
inline void save_example(const std::filesystem::path& root, int64_t step, int pp = 2, int idle = 0,
                         int64_t keep_last_n = 0) {
  comm::run_thread_ranks(pp + idle, [&](comm::Communicator& world) {
    std::vector<checkpoint::StageContents> mine;
    if (world.rank() < pp) mine.push_back(example_stage(world.rank(), pp, step));
    checkpoint::save(world,
                     {.root = root,
                      .layout = {{"pp", std::to_string(pp)}},
                      .job_toml = example_job,
                      .keep_last_n = keep_last_n},
                     example_state(step), mine);
  });
}

// Every rank of `ranks` saves. Returns the messages of the Errors by rank ("" without an error).
inline std::vector<std::string> messages_of(int ranks,
                                            const std::function<void(comm::Communicator&)>& save_on_rank) {
  std::vector<std::string> messages(static_cast<size_t>(ranks));
  comm::run_thread_ranks(ranks, [&](comm::Communicator& world) {
    try {
      save_on_rank(world);
    } catch (const Error& error) {
      messages[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  return messages;
}

// Changes the bytes of a file.
inline void overwrite(const std::filesystem::path& file, const std::function<void(std::string&)>& change) {
  std::string bytes = ScratchFolder::read_file(file);
  change(bytes);
  ScratchFolder::write_file(file, bytes);
}

// True if every tensor of the step reads back.
inline bool reads_back(const checkpoint::Reader& reader, int64_t step) {
  for (int layer = 0; layer < layers; ++layer) {
    for (const std::string& file : example_files) {
      for (const std::string& name : example_names(layer)) {
        const at::Tensor expected = example_tensor(file, name, step);
        at::Tensor out = at::empty(expected.sizes(), expected.options());
        reader.read(file, name, out);
        if (!out.equal(expected)) return false;
      }
    }
  }
  return true;
}

inline std::set<std::string> entries(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

}  // namespace pptrain::test
