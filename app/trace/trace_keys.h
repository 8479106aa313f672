// The words of trace.json, for those who write and read it. Its format is in README.md.
#pragma once

namespace pptrain::app {

inline constexpr const char* trace_format = "pptrain trace 1";

// Every key, for the writer and the reader. The first are Chrome's.
namespace keys {
inline constexpr const char* events = "traceEvents";
inline constexpr const char* other = "otherData";
inline constexpr const char* phase = "ph";
inline constexpr const char* name = "name";
inline constexpr const char* category = "cat";
inline constexpr const char* process = "pid";
inline constexpr const char* thread = "tid";
inline constexpr const char* time = "ts";
inline constexpr const char* duration = "dur";
inline constexpr const char* arguments = "args";
inline constexpr const char* stage = "stage";
inline constexpr const char* microbatch = "microbatch";
inline constexpr const char* step = "step";
inline constexpr const char* format = "format";
inline constexpr const char* model = "model";
inline constexpr const char* recompute = "recompute";
inline constexpr const char* steps = "steps";
inline constexpr const char* step_time = "step_time_s";
inline constexpr const char* kernels = "kernels";
}  // namespace keys

// Categories beside those of actions (schedule::trace_category).
inline constexpr const char* phase_category = "phase";
inline constexpr const char* wait_category = "wait";

}  // namespace pptrain::app
