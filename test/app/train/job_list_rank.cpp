// One rank of a program that runs several small jobs in one launch:
//   mpirun -np N job_list_rank JOBS
// JOBS is a JSON file, [{"text": job, "run_dir": folder, "overrides": ["section.key=value"]}].
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/launch/rank_in_world.h"
#include "app/plan/run_context.h"
#include "app/train/trainer.h"
#include "core/fault/shutdown.h"
#include "parallel/comm/bootstrap.h"
#include "test/app/small_job.h"
#include "test/support/end_process.h"

namespace {

int run(const char* list) {
  using namespace pptrain;
  try {
    const comm::Launch launch = comm::detect_launch();
    const auto world = comm::make_world(launch);
    const fault::Shutdown shutdown;
    for (const auto& entry : nlohmann::json::parse(std::ifstream(list))) {
      const app::Plan plan =
          test::small_plan(entry.at("text"), entry.at("run_dir").get<std::string>(), entry.at("overrides"));
      app::run_in_world(*world, plan,
                        [&](app::RunContext& context) { return app::train_to_end(context, shutdown); },
                        {.local_rank = launch.local_rank});
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace

int main(int, char** argv) {
  pptrain::test::end_process(run(argv[1]));
}
