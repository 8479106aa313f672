// cuDNN: its own plans, made for a described device (its deviceless ahead-of-time compilation); nothing runs
// them. A handle here is a dummy; objects that need one are made from the description instead.
#include <cudnn.h>
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "test/gpu/stand_in/described_device.h"
#include "test/gpu/stand_in/journal.h"

namespace {

using namespace stand_in;

template <class Function>
Function* real(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

cudnnStatus_t set(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                  cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  static const auto call = real(&cudnnBackendSetAttribute, "cudnnBackendSetAttribute");
  return call(descriptor, name, type, count, values);
}

cudnnStatus_t create(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  static const auto call = real(&cudnnBackendCreateDescriptor, "cudnnBackendCreateDescriptor");
  return call(type, descriptor);
}

const cudnnBackendDescriptor_t& described() {
  static const cudnnBackendDescriptor_t made = [] {
    cudnnBackendDescriptor_t d = nullptr;
    create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d);
    const std::string json = described_device(capability() >= 90 ? kH200 : kA100);
    set(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, static_cast<int64_t>(json.size()),
        json.data());
    cudnnBackendFinalize(d);
    return d;
  }();
  return made;
}

thread_local cudaStream_t handle_stream = nullptr;  // a handle serves one thread in LibTorch

}  // namespace

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  *handle = static_cast<cudnnHandle_t>(std::calloc(1, 4096));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  std::free(handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t, cudaStream_t stream) {
  handle_stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  const cudnnStatus_t status = create(type, descriptor);
  if (type == CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR) {
    set(*descriptor, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &described());
  } else if (type == CUDNN_BACKEND_ENGINE_DESCRIPTOR) {
    set(*descriptor, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &described());
  }
  return status;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) return CUDNN_STATUS_SUCCESS;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE) {
    return set(descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
               &described());
  }
  return set(descriptor, name, type, count, values);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t) {
  write("work " + name_of(handle_stream) + " cudnn");
  return CUDNN_STATUS_SUCCESS;
}

}  // extern "C"
