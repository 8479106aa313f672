// What a start of a run, new or resumed, says of itself once: the first line that it writes to metrics.jsonl.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace pptrain::metrics {

struct RunHeader {
  int64_t step = 0;        // that the start goes on from; 0: a new run
  std::string checkpoint;  // that it goes on from; empty: a new run
  std::chrono::system_clock::time_point time{};
  std::string version;  // of pptrain
  std::string host;     // of rank 0
  int64_t pid = 0;      // of rank 0
  std::string command;  // of rank 0, as a shell takes it
  std::string device;   // "cpu", or the GPU's name
  int64_t world_size = 1;
  std::map<std::string, std::string> layout;     // as in a checkpoint's manifest
  std::map<std::string, std::string> libraries;  // name -> version
};

// The libraries whose version can change a number, and the instruction set that LibTorch's CPU kernels use.
std::map<std::string, std::string> library_versions();

}  // namespace pptrain::metrics
