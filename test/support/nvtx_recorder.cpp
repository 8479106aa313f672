// A profiler for tests, which NVTX loads if NVTX_INJECTION64_PATH names it: appends each range that begins in
// the process to the file PPTRAIN_NVTX_RECORD, a line each.
#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <mutex>

namespace {

int begin_range(const char* name) {
  static std::mutex mutex;
  static std::ofstream file(std::getenv("PPTRAIN_NVTX_RECORD"), std::ios::app);
  const std::lock_guard lock(mutex);
  file << name << std::endl;
  return 0;
}

}  // namespace

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  uint32_t size = 0;
  NvtxFunctionTable table = nullptr;
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  if (callbacks == nullptr || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size))
    return 0;
  if (size <= NVTX_CBID_CORE_RangePushA) return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(begin_range);
  return 1;
}
