// What the search over a job's layouts found, for people and for programs.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "app/forecast/search.h"

namespace pptrain::app {

struct RankingStyle {
  size_t rows = 10;  // of the text, at most
  int width = 100;   // columns that no line exceeds, unless a single key is longer
};

// "--set KEY=VALUE ..." behind `indent` spaces: one command line, which goes on after a \ where it is longer
// than `width`.
std::string set_line(std::span<const std::string> overrides, size_t indent, int width);

// Each row with the --set line that makes the job so.
std::string render_ranking(const std::vector<Candidate>& candidates, const config::JobConfig& job,
                           double budget, const RankingStyle& style = {});
// All of them; seconds and bytes.
std::string ranking_json(const std::vector<Candidate>& candidates, const config::JobConfig& job,
                         double budget);
std::string ranking_csv(const std::vector<Candidate>& candidates, const config::JobConfig& job);

}  // namespace pptrain::app
