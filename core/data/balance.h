// Which documents make which microbatch, such that the schedule of the slowest data rank ends first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pptrain::data {

// The documents of each microbatch: [data rank][microbatch], as they were offered.
using Lists = std::vector<std::vector<std::vector<int64_t>>>;

struct LoaderOptions;

// When the last data rank's step ends, by options.step_end. `lengths`: of the documents.
int64_t last_end(std::span<const int64_t> lengths, const LoaderOptions& options, const Lists& lists);

// Returns the same documents, none of the lists empty, and last_end() no later. Starts from the better of
// two: the given lists, or new ones with small microbatches at both ends of the step. Then moves documents
// and swaps lists at random as long as the slowest data rank does not end later. A microbatch has
// options.micro_batch_size x seq_len tokens at most. Whole numbers, fixed seed, fixed number of tries: the
// same on every rank. (Minimises the makespan of the schedule that a step runs, over data ranks too:
// DynaPipe, arXiv 2311.10418; WLB-LLM, arXiv 2503.17924.)
Lists balanced(std::span<const int64_t> lengths, const LoaderOptions& options, Lists lists);

}  // namespace pptrain::data
