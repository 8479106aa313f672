// Streams and events: all work is done at once, until the device is stuck.
#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "test/gpu/stand_in/journal.h"

namespace {

using namespace stand_in;

struct Stream {
  long number;
};

struct Event {
  unsigned flags;
  bool alive = true, recorded = false;
  bool stuck = false;  // the device does not come to it
  std::chrono::steady_clock::time_point time;
};

Event& event_of(cudaEvent_t e) {
  return *reinterpret_cast<Event*>(e);
}

// From its PPTRAIN_GPU_STUCK_AT-th event on, the device is stuck.
bool is_stuck(long events) {
  static const char* const at = std::getenv("PPTRAIN_GPU_STUCK_AT");
  return at != nullptr && events >= std::atol(at);
}

std::atomic<long> recorded_events = 0;

void wait_for_device(bool stuck) {
  while (stuck) std::this_thread::sleep_for(std::chrono::hours(1));
}

cudaError_t dead(const char* call) {
  return refuse(cudaErrorInvalidResourceHandle, std::string(call) + " of a destroyed event");
}

}  // namespace

namespace stand_in {

std::string name_of(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return "s0";
  return "s" + std::to_string(reinterpret_cast<Stream*>(stream)->number);
}

}  // namespace stand_in

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  static std::atomic<long> made{0};
  *stream = reinterpret_cast<cudaStream_t>(new Stream{++made});
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t) {
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  write("wait stream " + name_of(stream));
  wait_for_device(is_stuck(recorded_events));
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  write("wait device");
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
  return event_of(event).alive ? cudaSuccess : dead("cudaStreamWaitEvent");
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**,
                                     size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t call, void* data, unsigned) {
  call(stream, cudaSuccess, data);
  return cudaSuccess;
}

// Events are never freed: one that is used after its end is found.
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = reinterpret_cast<cudaEvent_t>(new Event{.flags = flags, .time = {}});
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

// What the other process's device does is done at once, too.
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t event) {
  constexpr unsigned needed = cudaEventInterprocess | cudaEventDisableTiming;
  if ((event_of(event).flags & needed) == needed) return cudaSuccess;
  return refuse(cudaErrorInvalidValue, "cudaIpcGetEventHandle of an event of one process");
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t) {
  return cudaEventCreateWithFlags(event, cudaEventInterprocess | cudaEventDisableTiming);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (!event_of(event).alive) return dead("cudaEventDestroy");
  event_of(event).alive = false;
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t, unsigned) {
  Event& e = event_of(event);
  if (!e.alive) return dead("cudaEventRecord");
  e.recorded = true;
  e.stuck = is_stuck(++recorded_events);
  e.time = std::chrono::steady_clock::now();
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (!event_of(event).alive) return dead("cudaEventQuery");
  return event_of(event).stuck ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  write("wait event");
  wait_for_device(event_of(event).stuck);
  return event_of(event).alive ? cudaSuccess : dead("cudaEventSynchronize");
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  const Event &a = event_of(from), &b = event_of(to);
  if (!a.recorded || !b.recorded)
    return refuse(cudaErrorInvalidResourceHandle, "time of events not recorded");
  if (((a.flags | b.flags) & cudaEventDisableTiming) != 0) {
    return refuse(cudaErrorInvalidResourceHandle, "time of events without timing");
  }
  *ms = std::chrono::duration<float, std::milli>(b.time - a.time).count();
  return cudaSuccess;
}

}  // extern "C"
