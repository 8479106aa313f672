#include "core/metrics/step_record.h"

#include <nlohmann/json.hpp>
#include <string>

#include "test/support/catch.h"

using namespace pptrain;
using Json = nlohmann::json;

TEST_CASE("a step's record has the loads of experts where there are any") {
  metrics::StepRecord record{.step = 3, .loss = 2.5};
  CHECK_FALSE(Json::parse(metrics::to_json(record)).contains("expert_load"));
  record.expert_loads = {{1, {4, 4, 4, 4}}, {7, {0, 12, 4, 0}}};
  const Json json = Json::parse(metrics::to_json(record));
  CHECK(json["expert_load"] == Json::parse(R"({"1": [4, 4, 4, 4], "7": [0, 12, 4, 0]})"));
  CHECK(json["expert_imbalance"] == 3.0);
  CHECK(metrics::imbalance(std::vector<int64_t>{0, 0}) == 1);
}

TEST_CASE("an evaluation says the losses of several sources, and bits per byte where bytes are known") {
  metrics::EvalRecord record{.step = 3, .loss = 1.5, .tokens = 30};
  CHECK_FALSE(Json::parse(metrics::to_json(record)).contains("eval_sources"));
  record.sources = {{.name = "web", .sum = 20, .tokens = 10, .bytes = 40},
                    {.name = "code", .sum = 25, .tokens = 20}};
  const Json sources = Json::parse(metrics::to_json(record))["eval_sources"];
  CHECK(sources["web"]["loss"] == 2.0);
  CHECK(sources["web"]["tokens"] == 10);
  CHECK(sources["web"]["bits_per_byte"].get<double>() == Approx(0.721348));
  CHECK(sources["code"]["perplexity"].get<double>() == Approx(3.490343));
  CHECK_FALSE(sources["code"].contains("bits_per_byte"));
  metrics::StepRecord step{.step = 3};
  step.source_epochs = {{"web", 0.5}, {"code", 2}};
  CHECK(Json::parse(metrics::to_json(step))["epochs"] == Json::parse(R"({"web": 0.5, "code": 2.0})"));
}
