#include "parallel/schedule/schedule.h"

#include <string>
#include <utility>

#include "core/base/error.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/proof/validate.h"
#include "parallel/schedule/render/csv.h"
#include "test/fuzz/targets.h"

namespace pptrain::fuzz {
namespace {

using schedule::Gather;
using schedule::Reduce;
using schedule::Schedule;
using schedule::ShardOptions;

bool is_sound(const Schedule& schedule) {
  try {
    schedule::validate(schedule);
  } catch (const Error&) {
    return false;
  }
  return true;
}

void lower_in_every_way(const Schedule& parsed) {
  const bool computes_only = schedule::compute_only(parsed).actions == parsed.actions;
  const ShardOptions wanted[] = {
      {},
      {.gather = Gather::kept, .reduce = Reduce::step},
      {.gather = Gather::streamed, .reduce = Reduce::microbatch},
  };
  for (const ShardOptions& shard : wanted) {
    try {
      schedule::validate(schedule::lower(parsed, shard));
    } catch (const Error& error) {
      require(!computes_only, std::string("a sound schedule cannot be lowered: ") + error.what());
    }
  }
}

}  // namespace

bool schedule(std::string_view text) {
  Schedule parsed;
  try {
    parsed = schedule::parse_csv(std::string(text));
  } catch (const UsageError&) {
    return false;
  }
  require(schedule::parse_csv(schedule::write_csv(parsed)).actions == parsed.actions,
          "a schedule reads back as another");
  const bool sound = is_sound(parsed);
  if (sound) lower_in_every_way(parsed);
  return sound;
}

}  // namespace pptrain::fuzz
