// The sections of the benchmark: each adds rows of figures.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "test/gpu/bench/bench.h"
#include "test/gpu/bench/results.h"

namespace pptrain::bench {

struct Section {
  std::string_view name;
  void (*run)(Bench& bench, Rows& rows);
  std::vector<Column> columns;  // of the table on the terminal
};

// In the order of running.
std::span<const Section> sections();

void measure_copy(Bench& bench, Rows& rows);       // copy.cpp
void measure_products(Bench& bench, Rows& rows);   // products.cpp
void measure_attention(Bench& bench, Rows& rows);  // attention.cpp
void measure_kernels(Bench& bench, Rows& rows);    // kernels.cpp
void measure_stages(Bench& bench, Rows& rows);     // stages.cpp
void measure_profile(Bench& bench, Rows& rows);    // stages.cpp

}  // namespace pptrain::bench
