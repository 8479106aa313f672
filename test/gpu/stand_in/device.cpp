// Devices and their memory. The memory is the host's: reserved, and touched only by small copies, so that a
// model that fills a GPU fits.
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "test/gpu/stand_in/described_device.h"
#include "test/gpu/stand_in/journal.h"

namespace stand_in {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kMostDevices = 64;

const Gpu& kind() {
  return capability() >= 90 ? kH200 : kA100;
}

size_t total_bytes() {
  return size_t{kind().memory_gib} << 30;
}

// Other programs have PPTRAIN_GPU_TAKEN_GIB of it.
size_t left_bytes(size_t used) {
  const char* taken = std::getenv("PPTRAIN_GPU_TAKEN_GIB");
  return total_bytes() - std::min(total_bytes(), used + (taken == nullptr ? 0 : std::stoul(taken) << 30));
}

thread_local int current = 0;

// shared: the descriptor of memory that another process may map, too.
struct Block {
  size_t bytes, reserved;
  int device;
  int shared = -1;
};

struct Memory {
  std::mutex mutex;
  std::map<const char*, Block> blocks;
  size_t used[kMostDevices] = {};
};

Memory& memory() {
  static auto& made = *new Memory;  // never destroyed: CUDA's libraries free late
  return made;
}

const Block* block_of(const void* address) {
  const Memory& m = memory();
  const auto* at = static_cast<const char*>(address);
  auto block = m.blocks.upper_bound(at);
  return block != m.blocks.begin() && at < (--block)->first + block->second.reserved ? &block->second
                                                                                     : nullptr;
}

bool is_shared(const void* address) {
  const std::lock_guard lock(memory().mutex);
  const Block* block = block_of(address);
  return block != nullptr && block->shared >= 0;
}

// The device's memory holds zeros. Copies from the host are dropped, since no kernel reads them; copies to
// the host write to its own memory. What processes share holds what they have copied there.
cudaError_t copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDeviceToHost || is_shared(to) || is_shared(from)) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

// What an IPC handle of memory holds.
struct SharedBlock {
  int process, descriptor;
  size_t bytes, reserved;
};

}  // namespace

bool is_on_device(const void* address) {
  const std::lock_guard lock(memory().mutex);
  return block_of(address) != nullptr;
}

}  // namespace stand_in

using namespace stand_in;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const char* text = std::getenv("PPTRAIN_GPU_COUNT");
  *count = text == nullptr ? 1 : std::min(std::atoi(text), kMostDevices);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return refuse(cudaErrorInvalidDevice, "cudaSetDevice");
  current = device;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  std::memset(p, 0, sizeof *p);
  std::snprintf(p->name, sizeof p->name, "%s", kind().name);
  p->major = capability() / 10;
  p->minor = capability() % 10;
  p->totalGlobalMem = total_bytes();
  p->multiProcessorCount = kind().multiprocessors;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = static_cast<size_t>(kind().shared_bytes);
  p->sharedMemPerMultiprocessor = static_cast<size_t>(kind().shared_bytes) + 1024;
  p->l2CacheSize = 40 << 20;
  p->unifiedAddressing = 1;
  for (int i = 0; i < 16; ++i) p->uuid.bytes[i] = static_cast<char>(i + 1 + device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p;
  cudaGetDeviceProperties(&p, device);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return *value = p.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = p.minor, cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      return *value = p.multiProcessorCount, cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return *value = p.maxThreadsPerMultiProcessor, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = static_cast<int>(p.sharedMemPerBlockOptin), cudaSuccess;
    case cudaDevAttrL2CacheSize:
      return *value = p.l2CacheSize, cudaSuccess;
    default:  // mostly a capability: yes
      return *value = 1, cudaSuccess;
  }
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* left, size_t* total) {
  const std::lock_guard lock(memory().mutex);
  *total = total_bytes();
  *left = left_bytes(memory().used[current] + 600 * kMiB);  // a context takes some, too
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** address, size_t bytes) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  size_t& used = m.used[current];
  if (bytes > left_bytes(used)) return refuse(cudaErrorMemoryAllocation, "cudaMalloc");
  const size_t reserved = (bytes + 2 * kMiB) / (2 * kMiB) * (2 * kMiB);
  void* made =
      mmap(nullptr, reserved, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return refuse(cudaErrorMemoryAllocation, "cudaMalloc of the host");
  m.blocks[static_cast<const char*>(made)] = {.bytes = bytes, .reserved = reserved, .device = current};
  used += bytes;
  *address = made;
  write("malloc " + std::to_string(bytes));
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto block = m.blocks.find(static_cast<const char*>(address));
  if (block == m.blocks.end())
    return refuse(cudaErrorInvalidValue, "cudaFree of what cudaMalloc did not give");
  m.used[block->second.device] -= block->second.bytes;
  munmap(address, block->second.reserved);
  if (block->second.shared >= 0) close(block->second.shared);
  m.blocks.erase(block);
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* address) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.blocks.find(static_cast<const char*>(address));
  if (found == m.blocks.end()) return refuse(cudaErrorInvalidValue, "cudaIpcGetMemHandle");
  Block& block = found->second;
  block.shared = memfd_create("device_memory", 0);
  if (ftruncate(block.shared, static_cast<off_t>(block.reserved)) != 0 ||
      mmap(address, block.reserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, block.shared, 0) !=
          address)
    return refuse(cudaErrorMemoryAllocation, "cudaIpcGetMemHandle of the host");
  const SharedBlock shared{getpid(), block.shared, block.bytes, block.reserved};
  std::memcpy(handle, &shared, sizeof shared);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void** address, cudaIpcMemHandle_t handle, unsigned) {
  SharedBlock shared;
  std::memcpy(&shared, &handle, sizeof shared);
  const std::string path =
      "/proc/" + std::to_string(shared.process) + "/fd/" + std::to_string(shared.descriptor);
  const int file = open(path.c_str(), O_RDWR);
  void* made = mmap(nullptr, shared.reserved, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (made == MAP_FAILED) return refuse(cudaErrorMapBufferObjectFailed, "cudaIpcOpenMemHandle");
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.blocks[static_cast<const char*>(made)] = {
      .bytes = shared.bytes, .reserved = shared.reserved, .device = current, .shared = file};
  *address = made;
  write("ipc open " + std::to_string(shared.bytes));
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void* address) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto block = m.blocks.find(static_cast<const char*>(address));
  if (block == m.blocks.end()) return refuse(cudaErrorInvalidValue, "cudaIpcCloseMemHandle");
  munmap(address, block->second.reserved);
  close(block->second.shared);
  m.blocks.erase(block);
  write("ipc close");
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  *address = std::calloc(1, std::max<size_t>(bytes, 1));
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* address) {
  std::free(address);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void*, size_t, unsigned) {
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void*) {
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* address) {
  std::memset(a, 0, sizeof *a);
  a->type = is_on_device(address) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  a->device = current;
  a->devicePointer = const_cast<void*>(address);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  write("wait cudaMemcpy");
  return copy(to, from, bytes, kind);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  write("work " + name_of(stream) + " copy " + std::to_string(bytes));
  return copy(to, from, bytes, kind);
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) {
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void** address, const void*) {
  return cudaMalloc(address, kMiB);
}

cudaError_t cudaMemsetAsync(void*, int, size_t bytes, cudaStream_t stream) {
  write("work " + name_of(stream) + " fill " + std::to_string(bytes));
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

}  // extern "C"
