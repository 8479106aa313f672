#include "app/launch/same_job.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "app/data/datasets.h"
#include "app/data/text_codec.h"
#include "app/forecast/step_costs.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/data/inspect.h"
#include "core/kernels/cpu/loops.h"
#include "core/kernels/device_name.h"

namespace pptrain::app {

namespace {

namespace fs = std::filesystem;

constexpr size_t shown = 5;  // differences

// "1115394 bytes, fingerprint 0123...": lengths say more to people.
std::string describe(const std::vector<fs::path>& files) {
  uintmax_t bytes = 0;
  for (const fs::path& file : files) bytes += fs::file_size(file);
  const std::string fingerprint = data::fingerprint(files);
  return files.size() == 1
             ? fmt::format("{} bytes, fingerprint {}", bytes, fingerprint)
             : fmt::format("{} files of {} bytes together, fingerprint {}", files.size(), bytes, fingerprint);
}

// Other builds may send different messages. A system that hides the program's file hides it on all ranks.
std::string describe_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  try {
    return error ? "unknown" : describe({program});
  } catch (const std::exception&) {
    return "unknown";
  }
}

std::vector<fs::path> weight_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

using Values = std::map<std::string, std::string>;

// Names of values that differ, or that one side lacks.
std::vector<std::string> differences(const Identity& own, const Values& of_rank_0) {
  const std::string absent = "absent";
  std::vector<std::string> found;
  Values rest = of_rank_0;
  const auto add = [&](const std::string& name, const std::string& here, const std::string& there) {
    if (here != there) found.push_back(fmt::format("{} is {}, on rank 0 {}", name, here, there));
  };
  for (const auto& [name, value] : own) {
    const auto theirs = rest.extract(name);
    add(name, value, theirs ? theirs.mapped() : absent);
  }
  for (const auto& [name, value] : rest) add(name, absent, value);
  return found;
}

}  // namespace

Identity files_identity(const Plan& plan) {
  const config::JobConfig& job = plan.job;
  // Bits depend on the processors' kernels too (docs/what_is_exact.md).
  Identity identity = {{"the program", describe_program()},
                       {"the instruction set (PPTRAIN_ISA)", kernels::cpu::loops().isa}};
  if (plan.job.run.device == config::Device::cuda && kernels::gpu_count() > 0)
    identity.emplace_back("the GPU", kernels::device_name(c10::Device(c10::kCUDA, 0)));
  const std::vector<StreamFiles> streams =
      plan.reads_data ? streams_of(job, Wanted::all) : std::vector<StreamFiles>();
  for (const StreamFiles& stream : streams) {
    const bool texts = config::is_tokenized(job, stream.options);
    identity.emplace_back(fmt::format("the data of {}", stream.key),
                          describe(texts ? stream.files() : data::data_files(data_source(stream))));
    // The tokenizer, and whatever else the tokens depend on.
    if (texts)
      identity.emplace_back(fmt::format("the tokens of {}", stream.key), data_fingerprint(job, stream));
  }
  if (const fs::path tokenizer = tokenizer_of(job); !tokenizer.empty())
    identity.emplace_back("the tokenizer",
                          describe({fs::is_directory(tokenizer) ? tokenizer / "tokenizer.json" : tokenizer}));
  if (job.data.balance == config::Balance::schedule)
    identity.emplace_back("the predicted costs of data.balance", fingerprint(balance_costs(plan)));
  if (job.model.init == config::Init::hf)
    identity.emplace_back("the weights of model.hf_dir", describe(weight_files(job.model.hf_dir)));
  return identity;
}

std::string difference_from_rank_0(comm::Communicator& world, const Identity& own) {
  const std::string hash = fingerprint(own);
  const bool differs = comm::broadcast_string(world, hash, 0) != hash;
  if (!comm::any(world, differs)) return "";
  const nlohmann::json mine = {{"host", host_name()}, {"values", Values(own.begin(), own.end())}};
  const std::string told = comm::broadcast_string(world, world.rank() == 0 ? one_line(mine) : "", 0);
  if (!differs) return "";
  const auto theirs = nlohmann::json::parse(told);
  const std::vector<std::string> found = differences(own, theirs.at("values").get<Values>());
  const size_t count = std::min(found.size(), shown);
  return fmt::format(
      "(host {}) the job is another one than rank 0's (host {}): {}{}. Start all ranks with the same "
      "program, job file, --set and data",
      host_name(), theirs.at("host").get<std::string>(),
      fmt::join(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(count), "; "),
      found.size() > count ? fmt::format("; and {} more", found.size() - count) : "");
}

std::string find_other_job(comm::Communicator& world, const Plan& plan) {
  Identity own = identity(plan);
  std::string fault;
  try {
    const Identity files = files_identity(plan);
    own.insert(own.end(), files.begin(), files.end());
  } catch (const std::exception& error) {
    fault = error.what();
  }
  if (comm::any(world, !fault.empty())) return fault;
  return difference_from_rank_0(world, own);
}

}  // namespace pptrain::app
