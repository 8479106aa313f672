// What the search over meshes found, for people and for programs.
#pragma once

#include <string>

#include "app/forecast/mesh_search.h"

namespace pptrain::app {

// The ranking, each row with the --set line that makes the job so; the time of its first, and the best of
// what lost with the reason. No line exceeds `width` columns, unless a single word does.
std::string render_meshes(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                          const MeshSearchOptions& options, int width = 100);

// The same as JSON; seconds and bytes.
std::string meshes_json(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                        const MeshSearchOptions& options);

// The ranking alone; seconds and bytes.
std::string meshes_csv(const MeshSearchResult& result);

}  // namespace pptrain::app
