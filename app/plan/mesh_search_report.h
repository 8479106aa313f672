// What the search over meshes found, for people and for programs.
#pragma once

#include <string>

#include "app/plan/mesh_search.h"

namespace pptrain::app {

// The ranking, the time of its first, and the best of what lost with the reason.
std::string render_meshes(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                          const MeshSearchOptions& options);

// The same as JSON; seconds and bytes.
std::string meshes_json(const MeshSearchResult& result, const PlanBase& base, const CostSource& source,
                        const MeshSearchOptions& options);

}  // namespace pptrain::app
