// Times a stage of two tensor-parallel ranks, with products and exchanges whole and cut into chunks, on
// whatever transport its environment asks for:
//   tensor_bench [hidden [tokens [bf16]]]                       threads
//   mpirun -np 2 tensor_bench ...                               MPI
//   torchrun --no-python --nproc-per-node 2 tensor_bench ...    TCP
// Settings take turns, in another order every round; prints the median and the fastest.
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "parallel/comm/bootstrap.h"
#include "parallel/comm/thread/thread_communicator.h"
#include "parallel/tensor/tensor_region.h"
#include "test/models/small_model.h"

namespace pptrain::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Setting {
  int64_t hidden = 512, tokens = 1024;
  at::ScalarType dtype = at::kFloat;
};

models::ModelConfig bench_model(const Setting& setting) {
  models::ModelConfig model;
  model.arch = "llama";
  model.layers = 2;
  model.hidden = setting.hidden;
  model.intermediate = setting.hidden * 11 / 4 / 64 * 64;
  model.heads = setting.hidden / 64;
  model.kv_heads = model.heads / 2;
  model.head_dim = 64;
  model.vocab = 1024;
  model.max_seq = setting.tokens;
  return model;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double ms_of(comm::Communicator& world, const std::function<void()>& body) {
  world.barrier();
  const auto start = Clock::now();
  body();
  world.barrier();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void measure(comm::Communicator& world, const Setting& setting) {
  const c10::InferenceMode inference;
  at::set_num_threads(1);
  const models::ModelConfig model = bench_model(setting);
  const std::vector<int> chunks{1, 2, 4, 8};
  std::vector<Stages> stages;
  for (const int count : chunks) {
    models::Seams seams;
    seams.region = tensor::make_region(&world, count);
    stages.push_back(build_stages(model, {2}, setting.dtype, 7, models::Recompute::none, seams));
  }
  const data::Microbatch data = random_documents(model, {setting.tokens}, 1);
  std::map<int, std::vector<double>> forward, backward;
  for (int round = 0; round < 13; ++round) {
    for (size_t turn = 0; turn < chunks.size(); ++turn) {
      const size_t i = (turn + static_cast<size_t>(round)) % chunks.size();
      models::TransformerStage& stage = *stages[i][0];
      const double f = ms_of(world, [&] { stage.forward(0, data, {}); });
      const double b = ms_of(world, [&] { stage.backward(0, {}); });
      if (round == 0) continue;  // buffers and connections
      forward[chunks[i]].push_back(f);
      backward[chunks[i]].push_back(b);
    }
  }
  if (world.rank() != 0) return;
  for (const int count : chunks) {
    fmt::print(
        "hidden {}, {} tokens, {}, {} chunk(s): forward {:.1f} ({:.1f}) ms, backward {:.1f} ({:.1f}) ms\n",
        setting.hidden, setting.tokens, setting.dtype == at::kFloat ? "fp32" : "bf16", count,
        median(forward[count]), std::ranges::min(forward[count]), median(backward[count]),
        std::ranges::min(backward[count]));
  }
}

}  // namespace
}  // namespace pptrain::test

int main(int argc, char** argv) {
  using namespace pptrain;
  test::Setting setting;
  if (argc > 1) setting.hidden = std::atoll(argv[1]);
  if (argc > 2) setting.tokens = std::atoll(argv[2]);
  if (argc > 3 && std::string(argv[3]) == "bf16") setting.dtype = at::kBFloat16;
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) {
    comm::run_thread_ranks(2, [&](comm::Communicator& world) { test::measure(world, setting); });
  } else {
    const auto world = comm::make_world(launch);
    test::measure(*world, setting);
  }
  return 0;
}
