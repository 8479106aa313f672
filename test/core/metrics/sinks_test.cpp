#include "core/metrics/record_json.h"

#include <nlohmann/json.hpp>
#include <string>

#include "test/support/catch.h"

using namespace pptrain;
using Json = nlohmann::json;

TEST_CASE("a step's record has the loads of experts where there are any") {
  metrics::StepRecord record{.step = 3, .loss = 2.5};
  CHECK_FALSE(Json::parse(metrics::to_json(record)).contains("expert_load"));
  record.expert_loads = {{.layer = 1, .rows = {4, 4, 4, 4}}, {.layer = 7, .rows = {0, 12, 4, 0}}};
  const Json json = Json::parse(metrics::to_json(record));
  CHECK(json["expert_load"] == Json::parse(R"({"1": [4, 4, 4, 4], "7": [0, 12, 4, 0]})"));
  CHECK(json["expert_imbalance"] == 3.0);
  CHECK(metrics::ExpertLoad{.layer = 0, .rows = {0, 0}}.imbalance() == 1);
}
