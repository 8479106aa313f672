#include "parallel/schedule/render/render.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/passes/passes.h"
#include "parallel/schedule/render/text_layout.h"
#include "test/support/catch.h"
#include "test/support/passes_of.h"

using namespace pptrain::schedule;
using pptrain::test::contains_text;

TEST_CASE("the text grid is to scale, with idle time as dots") {
  const Schedule s = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2});
  CHECK(render_text(s, {}) ==
        "time   0              5\n"
        "rank 0 F0 F1 .  .  B0--- .  B1---\n"
        "rank 1 .  F0 B0--- F1 B1--- .  .\n");
  // In milliseconds; B takes two and a half times what F does.
  const Costs costs{.stages = {passes_of(0.01, 0.015, 0.01)}, .latency = {}};
  CHECK(render_text(s, costs, {.seconds = true}) ==
        "ms     0               50\n"
        "rank 0 F0 F1 .  .  . B0----- .  B1-----\n"
        "rank 1 .  F0 B0----- F1 B1----- .  .  .\n");
  CHECK_THAT(render_text(s, {}, {.colour = true}), contains_text("\033[34mF0 \033[0m"));
}

TEST_CASE("passes that take the same time are drawn equally wide, and none before what it waits for") {
  for (const std::string name : {"gpipe", "1f1b", "zb_h1", "zb_h2"}) {
    const Schedule s = make_schedule({.name = name, .ranks = 3, .microbatches = 7});
    // Times that are not multiples of each other, and messages that take time.
    const Costs costs{
        .stages = {passes_of(1, 1.13, 0.71), passes_of(1.37, 1.5, 0.9), passes_of(2.09, 1.31, 1.71)},
        .latency = {0.3}};
    const std::string text = render_text(s, costs, {.width = 4000});
    CAPTURE(name, text);
    std::map<std::pair<int, char>, std::set<size_t>> widths;
    std::map<std::pair<int, std::string>, size_t> starts, ends;
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    for (int rank = 0; rank < 3; ++rank) {
      std::getline(lines, line);
      for (size_t at = line.find_first_of("FBIW", 7); at != std::string::npos;
           at = line.find_first_of("FBIW", at + 1)) {
        size_t end = line.find_first_of(" ", at);
        end = std::min(end, line.size());
        widths[{rank, line[at]}].insert(end - at);
        const std::string label = line.substr(at, line.find_first_not_of("0123456789", at + 1) - at);
        starts[{rank, label}] = at;
        ends[{rank, label}] = end;
      }
    }
    CHECK(widths.size() >= 6);
    for (const auto& [kind, found] : widths) CHECK(found.size() == 1);
    const auto backward = [&](const auto& places, int rank, const std::string& microbatch) {
      return places.at({rank, (places.contains({rank, "B" + microbatch}) ? "B" : "I") + microbatch});
    };
    for (int m = 0; m < 7; ++m) {
      for (int rank = 0; rank + 1 < 3; ++rank) {
        const std::string number = std::to_string(m);
        CHECK(starts.at({rank + 1, "F" + number}) > ends.at({rank, "F" + number}));
        CHECK(backward(starts, rank, number) > backward(ends, rank + 1, number));
      }
    }
  }
}

TEST_CASE("a long step goes on in further bands, and is cut after the last, which is said") {
  const Schedule s = make_schedule({.name = "1f1b", .ranks = 4, .microbatches = 64});
  for (const int width : {80, 120, 200}) {
    const std::string text = render_text(s, {}, {.width = width, .bands = 2});
    CAPTURE(width, text);
    std::istringstream lines(text);
    int rows = 0;
    for (std::string line; std::getline(lines, line);) {
      CHECK(line.size() <= static_cast<size_t>(width));
      rows += line.starts_with("rank 3") ? 1 : 0;
    }
    CHECK(rows == 2);
    CHECK_THAT(text, contains_text(" of 201)"));
  }
  CHECK_THAT(render_text(s, {}, {.width = 2000}), !contains_text("up to"));
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
  CHECK_THAT(render_text(compute_only(s), {}),
             contains_text("rank 0 0F0 0F1 2F0 2F1 .\nrank 1 .   1F0 1F1 3F0 3F1\n"));
}

TEST_CASE("times are told with three digits and a unit") {
  CHECK(format_seconds(0.0045432) == "4.54 ms");
  CHECK(format_seconds(0.0711) == "71.1 ms");
  CHECK(format_seconds(0.9996) == "1000 ms");
  CHECK(format_seconds(12.345) == "12.3 s");
  CHECK(format_seconds(1234.5) == "1234 s");
  CHECK(format_seconds(2.5e-5) == "25.0 us");
  CHECK(format_seconds(0) == "0.00 us");
  CHECK(with_commas(1234567.4) == "1,234,567");
  CHECK(nice_interval(0.3) == Approx(0.5));
  CHECK(nice_interval(7) == Approx(10));
}

TEST_CASE("lines are broken at spaces") {
  CHECK(wrapped("aa bb cc dd\nee", 5, 1) == "aa bb\n cc\n dd\nee");
  CHECK(wrapped("  a long-word b\n", 8, 4) == "  a\n    long-word\n    b\n");
  CHECK(table({{"#", "name", "n"}, {"10", "x", "5"}, {"2", "longer"}}, 2) ==
        "#   name    n\n10  x       5\n2   longer\n");
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
  // Five boundaries, forwards and backwards; the turn is inside a rank.
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

TEST_CASE("the svg's rows lie below each other, and the axis below them has its marks to scale") {
  const Schedule s = make_schedule({.name = "1f1b", .ranks = 3, .microbatches = 6});
  const std::string svg = render_svg(s, simulate(s));
  // Where the text is written: x and y.
  const auto place_of = [&](const std::string& text, const std::string& more = "end\" fill=\"#222222") {
    const std::regex label("<text x=\"([0-9.]+)\" y=\"([0-9.]+)\" text-anchor=\"" + more + "\">" + text +
                           "</text>");
    std::smatch found;
    REQUIRE(std::regex_search(svg, found, label));
    return std::pair(std::stod(found[1]), std::stod(found[2]));
  };
  const double first = place_of("rank 0").second, second = place_of("rank 1").second;
  CHECK(second > first);
  CHECK(place_of("rank 2").second - second == second - first);
  // A step of 6 * 3 + 2 * 3 = 24, drawn 720 wide.
  for (const int mark : {0, 5, 10, 15, 20}) {
    const auto place = place_of(std::to_string(mark), "middle\" fill=\"#444444");
    CHECK(place.second > place_of("rank 2").second);
    CHECK(place.first - place_of("0", "middle\" fill=\"#444444").first == Approx(720.0 * mark / 24));
  }
}

TEST_CASE("the svg's title counts whole microbatches") {
  const Schedule s =
      lower(make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 3, .sequence_slices = 4}));
  CHECK_THAT(render_svg(s, simulate(s)), contains_text("2 stages, 3 microbatches in 4 slices each; "));
}

TEST_CASE("the svg's axis has a unit, and its legend what is drawn") {
  const Schedule s = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2});
  const Simulation simulation = simulate(s, {.stages = {passes_of(0.01, 0.01, 0.01)}, .latency = {}});
  const std::string svg = render_svg(s, simulation, /*seconds=*/true);
  CHECK_THAT(svg,
             contains_text("passes 90.0 ms") && contains_text(">ms</text>") && contains_text(">20</text>"));
  CHECK_THAT(svg, contains_text("1B1: 60 to 80 ms") || contains_text("1B1: 50 to 70 ms"));
  CHECK_THAT(svg, contains_text("F forward") && contains_text("B backward"));
  CHECK_THAT(svg, !contains_text("I input gradient") && !contains_text("W weight gradient"));
  const Schedule zero_bubble = make_schedule({.name = "zb_h1", .ranks = 2, .microbatches = 2});
  const std::string split = render_svg(zero_bubble, simulate(zero_bubble));
  CHECK_THAT(split, contains_text("I input gradient") && contains_text("W weight gradient"));
  CHECK_THAT(split, !contains_text(">ms</text>") && !contains_text("later stages"));
  const Schedule two_stages = make_schedule({.name = "zbv", .ranks = 2, .microbatches = 4});
  CHECK_THAT(render_svg(two_stages, simulate(two_stages)), contains_text("the rank's later stages"));
}

TEST_CASE("exchanges are drawn and told where they take time") {
  const Schedule s =
      lower(make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2}), {.gather = Gather::kept});
  const Simulation simulation =
      simulate(s, {.stages = {}, .latency = {}, .exchange = {{.gather = 0.5, .reduce = 1, .groups = 2}}});
  const Simulation without = simulate(s);
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

TEST_CASE("a value crosses ranks from the stage that makes it, a gradient to the stage before") {
  const Schedule s = make_schedule({.name = "1f1b", .ranks = 2, .microbatches = 2});
  const auto sent = [&](const char* action) { return value_sent(s, parse_action(action)).value_or(""); };
  const auto received = [&](const char* action) {
    return value_received(s, parse_action(action)).value_or("");
  };
  CHECK(sent("0F1") == "0F1");
  CHECK(received("1F1") == "0F1");
  CHECK(received("0F1").empty());
  CHECK(sent("1F1").empty());
  CHECK(sent("1B0") == "1B0");
  CHECK(received("0B0") == "1B0");
  CHECK(received("1B0").empty());
  CHECK(sent("0B0").empty());
}

TEST_CASE("pairs are drawn by the costs of their passes, given once or for each stage") {
  const Schedule s = make_schedule({.name = "dualpipe_v", .ranks = 3, .microbatches = 7});
  const StageCost cost = passes_of(1, 1.5, 1);
  const Costs once{.stages = {cost}, .latency = {}};
  const Costs each{.stages = std::vector(static_cast<size_t>(s.stages()), cost), .latency = {}};
  CHECK(render_text(s, once) == render_text(s, each));
}
