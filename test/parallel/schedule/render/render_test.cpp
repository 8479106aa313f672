#include "parallel/schedule/render/render.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "test/support/catch.h"

using namespace pptrain::schedule;
using pptrain::test::contains_text;

TEST_CASE("the text grid is to scale, with idle time as dots") {
  const Schedule s = lower(make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2}));
  const std::string text = render_text(s, simulate(s));
  INFO(text);
  CHECK_THAT(text, contains_text("       0  1  2  3  4  5  6  7  8\n"
                                 "rank 0 F0 F1 .  .  B0--- .  B1---\n"
                                 "rank 1 .  F0 B0--- F1 B1--- .  .\n"));
  CHECK_THAT(text, contains_text("bubble 33.3 %"));
  CHECK_THAT(render_text(s, simulate(s), {.colour = true, .max_columns = 3}),
             contains_text("\033[34mF0 \033[0m") && contains_text("the first 3 of 9 columns"));
}

TEST_CASE("several stages on a rank are told apart") {
  const Schedule s = forward_only(
      [] {
        Schedule two;
        two.ranks = 2;
        two.stages_per_rank = 2;
        two.actions.resize(2);
        return two;
      }(),
      2);
  CHECK_THAT(render_text(s, simulate(s)),
             contains_text("rank 0 0F0 0F1 2F0 2F1 .\nrank 1 .   1F0 1F1 3F0 3F1\n"));
}

TEST_CASE("the json holds the grid, the bubble and the bounds") {
  Schedule s = lower(make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 4}));
  s.name = "a \"b\" \\ \n";
  const Simulation simulation = simulate(s);
  const auto summary = nlohmann::json::parse(render_json(summary_json(s, simulation)));
  CHECK_FALSE(summary.contains("actions"));
  auto json = nlohmann::json::parse(render_json_with_actions(summary_json(s, simulation), s, simulation));
  CHECK(json["schedule"] == s.name);
  CHECK(json["bubble"].get<double>() == simulation.bubble());
  CHECK(json["bubble"].get<double>() == Approx(0.2));
  CHECK(json["per_rank"].size() == 2);
  CHECK(json["per_rank"][0]["in_flight"]["activations"] == 2);
  CHECK(json["per_rank"][1]["in_flight"]["activations"] == 1);
  CHECK(json["per_rank"][1]["stages"] == nlohmann::json::array({1}));
  REQUIRE(json["actions"].size() == 2);
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(json["actions"][rank].size() == s.actions[rank].size());
    for (size_t i = 0; i < s.actions[rank].size(); ++i) {
      const auto& action = json["actions"][rank][i];
      CHECK(action["action"] == to_string(s.actions[rank][i]));
      CHECK(action["start"].get<double>() == simulation.spans[rank][i].start);
      CHECK(action["end"].get<double>() == simulation.spans[rank][i].end);
    }
  }
  json.erase("actions");
  CHECK(json == summary);
}

TEST_CASE("the trace has an event per compute action and an arrow per message") {
  const Schedule s = make_schedule({.name = "dualpipe_v", .ranks = 3, .microbatches = 7});
  const Simulation simulation = simulate(s);
  const auto json = nlohmann::json::parse(render_trace(s, simulation, 1e-3));
  size_t spans = 0;
  std::map<std::string, std::pair<int, int>> arrows;
  double last = 0;
  for (const auto& event : json["traceEvents"]) {
    if (event["ph"] == "X") {
      ++spans;
      last = std::max(last, event["ts"].get<double>() + event["dur"].get<double>());
    }
    if (event["ph"] == "s") ++arrows[event["id"]].first;
    if (event["ph"] == "f") ++arrows[event["id"]].second;
  }
  size_t compute = 0;
  for (const auto& list : s.actions) compute += list.size();
  CHECK(spans == compute);
  CHECK(last == Approx(simulation.step_time * 1000));
  // Five boundaries of which the turn is inside a rank, forwards and backwards.
  CHECK(arrows.size() == 4u * 7u * 2u);
  for (const auto& [id, ends] : arrows) CHECK((ends.first == 1 && ends.second == 1));
}

TEST_CASE("the svg has a box per action, drawn to scale") {
  Schedule s = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2});
  s.name = "a<b & c";
  const std::string svg = render_svg(s, simulate(s));
  const auto count = [&](const std::string& part) {
    size_t found = 0;
    for (size_t at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) ++found;
    return found;
  };
  CHECK(count("<title>") == 8);
  CHECK(count("<g>") == count("</g>"));
  CHECK_THAT(svg, contains_text("a&lt;b &amp; c"));
  // The step of 9 is 720 wide, so F is 80 and B 160.
  CHECK(count("width=\"80\"") == 4);
  CHECK(count("width=\"160\"") == 4);
  CHECK_THAT(svg, contains_text("1B1: 6 to 8") || contains_text("1B1: 5 to 7"));
}

TEST_CASE("exchanges are drawn and told where they take time") {
  const Schedule s =
      lower(make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2}), {.shard = {.unshard = true}});
  const Simulation simulation = simulate(
      s,
      {.stages = {}, .latency = {}, .overlap = 1, .exchange = {{.gather = 0.5, .reduce = 1, .groups = 2}}});
  const Simulation without = simulate(s);
  CHECK_THAT(render_text(s, simulation), contains_text("exchange wait  reducing"));
  CHECK_THAT(render_text(s, without), !contains_text("exchange wait"));
  CHECK_THAT(render_svg(s, simulation), contains_text("<title>0UNSHARD: 0 to 0.5</title>") &&
                                            contains_text("<title>1REDUCE_GRAD: ") &&
                                            contains_text("UNSHARD: gathers"));
  CHECK_THAT(render_svg(s, without), !contains_text("UNSHARD") && !contains_text("REDUCE_GRAD"));
  const auto json = nlohmann::json::parse(render_json(summary_json(s, simulation)));
  CHECK(json["per_rank"][0]["wait_for_exchange"] == 0.25);
  CHECK(json["per_rank"][0]["reducing"] == 0.5);
  std::map<int, std::string> tracks;
  std::map<std::string, int> track_of;
  const auto trace = nlohmann::json::parse(render_trace(s, simulation));
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
    if (event["ph"] == "X") track_of[event["name"]] = event["tid"];
  }
  CHECK(tracks.size() == 6);
  CHECK(tracks[track_of["1F0"]] == "rank 1");
  CHECK(tracks[track_of["1UNSHARD"]] == "rank 1 gathers");
  CHECK(tracks[track_of["1REDUCE_GRAD"]] == "rank 1 reductions");
}
