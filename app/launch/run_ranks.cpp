#include "app/launch/run_ranks.h"

#include <spdlog/fmt/fmt.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "app/launch/blocks.h"
#include "app/launch/gathering.h"
#include "app/launch/spares.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/base/timing.h"
#include "core/kernels/device_name.h"
#include "parallel/comm/bootstrap.h"
#include "parallel/comm/liveness/stall_watch.h"
#include "parallel/comm/thread/thread_communicator.h"

namespace pptrain::app {

namespace {

int run_threads(const Plan& plan, const RankBody& body) {
  set_numerics(plan);
  const int ranks = plan.mesh.world_size();
  log_of(Subsystem::comm).info("no launcher: {} ranks are threads of this process", ranks);
  std::atomic<int> code = 0;
  std::deque<comm::Activity> activities(static_cast<size_t>(ranks));
  const auto states = [&] {
    std::vector<comm::RankState> all;
    for (const comm::Activity& activity : activities)
      all.push_back({static_cast<int>(all.size()), "", activity.state()});
    return all;
  };
  std::optional<comm::StallWatch> watch;
  if (plan.job.run.device == config::Device::cuda && kernels::gpu_count() > 0)
    watch.emplace(activities,
                  comm::StallWatch::Options{.timeout = milliseconds_of(plan.job.distributed.timeout_s),
                                            .device = c10::Device(c10::kCUDA, 0)});
  comm::run_thread_ranks(ranks, [&](comm::Communicator& world) {
    const int result = run_in_world(world, plan, body,
                                    {.local_rank = world.rank(),
                                     .ranks_here = ranks,
                                     .threads_alone = true,
                                     .activity = &activities[static_cast<size_t>(world.rank())],
                                     .states = states});
    if (world.rank() == 0) code = result;
  });
  return code;
}

}  // namespace

int run_ranks(const Plan& plan, const RankBody& body) {
  return run_ranks([&] { return plan; }, body);
}

int run_ranks(const std::function<Plan()>& load, const RankBody& body,
              const std::function<bool()>& stop_requested) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.kind == comm::LaunchKind::threads) return run_threads(load(), body);
  if (launch.has_agent) end_with_agent();
  std::optional<Plan> plan;
  StartFault fault;
  try {
    plan = load();
    mesh::check_processes(plan->mesh, launch.world_size - plan->spare_processes);
    set_numerics(*plan);
  } catch (const UsageError& error) {
    fault = {error.what(), exit_usage};
  } catch (const std::exception& error) {
    fault = {error.what(), exit_failed};
  }
  comm::Activity activity;
  // Outlives the world, whose end waits for the other ranks too.
  std::unique_ptr<comm::Heartbeat> heartbeat;
  std::optional<Gathering> gathering(std::in_place, launch, plan, fault, stop_requested);
  std::unique_ptr<comm::Communicator> world;
  try {
    world = gathering->meet();
  } catch (const StoppedAtStart& stop) {
    fmt::print(stderr, "pptrain: {}\n", printable(stop.what()));
    return exit_stopped;
  }
  if (!world) return fault.code;
  if (const int code = gathering->agree(*world); code != 0) return code;
  if (!share_choices(*world, *plan)) return exit_usage;
  if (world->size() < plan->mesh.world_size()) {
    const comm::Launch with_patience = gathering->launch();
    gathering.reset();
    return run_blocks(*world, with_patience, *plan, body);
  }
  const std::unique_ptr<comm::Communicator> working = without_spares(*world, *plan);
  comm::Communicator& ranks = working ? *working : *world;
  if (world->rank() < plan->mesh.world_size())
    heartbeat = start_heartbeat(ranks, launch, *plan, activity,
                                [&gathering] { return gathering->address_of_ranks(); });
  gathering.reset();
  if (world->rank() >= plan->mesh.world_size()) return await_end(*world, launch, stop_requested);
  const int code =
      run_in_world(ranks, *plan, body,
                   {.local_rank = launch.local_rank, .heartbeat = heartbeat.get(), .activity = &activity});
  if (working && world->rank() == 0) tell_spares(*world, plan->mesh.world_size(), code);
  return code;
}

}  // namespace pptrain::app
