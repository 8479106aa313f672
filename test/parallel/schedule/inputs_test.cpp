#include "parallel/schedule/inputs.h"

#include <set>
#include <utility>

#include "test/support/catch.h"

namespace pptrain::schedule {

TEST_CASE("A pass's input has the pass's rank among its users, and both cross the same boundary") {
  for (const Placement placement : {Placement::loop, Placement::v}) {
    for (const bool spread : {false, true}) {
      for (const auto& [ranks, stages_per_rank] : {std::pair(1, 1), {1, 2}, {3, 1}, {3, 2}, {2, 3}}) {
        Schedule shape;
        shape.ranks = ranks;
        shape.stages_per_rank = stages_per_rank;
        shape.placement = placement;
        shape.spread_head = spread;
        const Inputs inputs(shape);
        std::set<size_t> places;
        const PassTable<int> table(shape);
        const auto check = [&](const Action& pass) {
          CAPTURE(to_string(placement), spread, ranks, stages_per_rank, to_string(pass));
          places.insert(table.place(pass));
          const std::optional<Input> input = inputs.of(pass);
          REQUIRE(input.has_value() == (pass.kind != ActionKind::forward || pass.stage > 0));
          if (!input) return;
          std::set<std::pair<int, int>> users;
          inputs.for_each_user(input->pass, [&](int rank, int boundary) { users.insert({rank, boundary}); });
          CHECK(users.contains({shape.rank_of(pass.stage), input->boundary}));
          const bool between_stages = input->boundary >= 0 && input->boundary + 1 < shape.stages();
          CHECK(inputs.crosses(input->pass) == between_stages);
        };
        for (int stage = 0; stage < shape.stages(); ++stage) {
          check(forward(stage, 0));
          check(backward(stage, 0));
        }
        for (int rank = 0; spread && rank < ranks; ++rank) {
          check(head_forward(rank, 0));
          check(head_backward(rank, 0));
        }
        CHECK(places.size() == table.size());
        CHECK(inputs.makers(forward(0, 0)) == 1);
        CHECK(inputs.makers(head_forward(0, 0)) == ranks);
      }
    }
  }
}

}  // namespace pptrain::schedule
