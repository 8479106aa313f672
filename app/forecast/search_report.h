// What the searches found, for people and for programs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "app/forecast/search.h"

namespace pptrain::app {

// The first `most_rows`, each with the --set line that sets the job so. No line exceeds `width` columns,
// unless a single key does.
std::string render_ranking(const std::vector<Candidate>& candidates, const config::JobConfig& job,
                           double budget, int width = 100, size_t most_rows = 10);
// All of them; seconds and bytes.
std::string ranking_json(const std::vector<Candidate>& candidates, const config::JobConfig& job,
                         double budget);
std::string ranking_csv(const std::vector<Candidate>& candidates, const config::JobConfig& job);

// --- All meshes.

// The ranking and what was refined, each with the --set line that sets the job so; how the first one spends
// its time; and the best of the losers, with reasons. No line exceeds `width` columns, unless a single word
// does.
std::string render_meshes(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                          const SearchOptions& options, int width = 100);

// The same as JSON; seconds and bytes.
std::string meshes_json(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                        const SearchOptions& options);

// The ranking, then what was refined; seconds and bytes.
std::string meshes_csv(const MeshSearchResult& result, const PlanBase& base);

}  // namespace pptrain::app
