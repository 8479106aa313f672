# Third-party libraries as imported targets: torch::cpu, torch::cuda (with CUDA), MPI::MPI_C, toml++, CLI11, spdlog, ...
#
# LibTorch is the one inside the Python package `torch` of the project's virtual environment, or any folder given as
# PPTRAIN_TORCH_DIR. It is imported by hand rather than with find_package(Torch): the package file of a CUDA wheel
# refuses to configure on a machine without the CUDA toolkit, where a CPU build needs only libtorch_cpu and libc10.
if(NOT PPTRAIN_TORCH_DIR)
  file(GLOB torch_candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  list(GET torch_candidates 0 torch_first)
  set(PPTRAIN_TORCH_DIR "${torch_first}" CACHE PATH "Folder of LibTorch (with include/ and lib/)" FORCE)
endif()
if(NOT EXISTS ${PPTRAIN_TORCH_DIR}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found in '${PPTRAIN_TORCH_DIR}': run scripts/build.sh, which installs it, "
                      "or set PPTRAIN_TORCH_DIR to a folder with include/ and lib/.")
endif()

add_library(torch::cpu INTERFACE IMPORTED)
# LibTorch's include folder carries a newer fmt than the one that spdlog is built with; spdlog's must be found first.
find_path(fmt_include_dir fmt/format.h PATHS ENV CPATH /usr/include /usr/local/include NO_DEFAULT_PATH)
if(fmt_include_dir)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/include-first)
  file(CREATE_LINK ${fmt_include_dir}/fmt ${PROJECT_BINARY_DIR}/include-first/fmt SYMBOLIC)
  target_include_directories(torch::cpu SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/include-first)
endif()
target_include_directories(torch::cpu SYSTEM INTERFACE
  ${PROJECT_SOURCE_DIR}/scripts/cmake/narrow_torch ${PPTRAIN_TORCH_DIR}/include ${PPTRAIN_TORCH_DIR}/include/torch/csrc/api/include)
# ATen's headers then include only the operators that they use, which saves 3 s per compilation.
target_compile_definitions(torch::cpu INTERFACE AT_PER_OPERATOR_HEADERS)
target_link_libraries(torch::cpu INTERFACE ${PPTRAIN_TORCH_DIR}/lib/libtorch_cpu.so ${PPTRAIN_TORCH_DIR}/lib/libc10.so)

# The wheel's CUDA libraries lie in sibling packages; ld must find them when it follows libtorch_cpu's needs.
file(GLOB nvidia_lib_dirs ${PPTRAIN_TORCH_DIR}/../nvidia/*/lib ${PPTRAIN_TORCH_DIR}/../cusparselt/lib
     ${PPTRAIN_TORCH_DIR}/../nvshmem/lib)
set(CMAKE_BUILD_RPATH ${PPTRAIN_TORCH_DIR}/lib ${nvidia_lib_dirs})
foreach(dir ${nvidia_lib_dirs})
  target_link_options(torch::cpu INTERFACE -Wl,-rpath-link,${dir})
endforeach()

set(PPTRAIN_HAS_CUDA OFF)
if(NOT PPTRAIN_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    # The GPU's own where there is one; each further architecture costs its compiler's time again.
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE found ERROR_QUIET)
    set(architecture 90)
    if(found MATCHES "^([0-9]+)\\.([0-9])")
      set(architecture ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
    endif()
    set(CMAKE_CUDA_ARCHITECTURES ${architecture} CACHE STRING "GPU architectures to compile for")
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(PPTRAIN_HAS_CUDA ON)
    set(CMAKE_CUDA_STANDARD 20)
  elseif(PPTRAIN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PPTRAIN_CUDA=ON, but no CUDA compiler (nvcc) was found. Put it on PATH or use PPTRAIN_CUDA=OFF.")
  endif()
endif()
if(PPTRAIN_HAS_CUDA)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${PPTRAIN_TORCH_DIR}/../nvidia/nccl/include)
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${PPTRAIN_TORCH_DIR}/../nvidia/nccl/lib)
  add_library(torch::cuda INTERFACE IMPORTED)
  target_include_directories(torch::cuda SYSTEM INTERFACE ${NCCL_INCLUDE_DIR})
  target_link_libraries(torch::cuda INTERFACE torch::cpu
    -Wl,--no-as-needed ${PPTRAIN_TORCH_DIR}/lib/libtorch_cuda.so ${PPTRAIN_TORCH_DIR}/lib/libc10_cuda.so -Wl,--as-needed
    CUDA::cudart CUDA::cublas ${NCCL_LIBRARY})
  # Optional: cuDNN's frontend is headers alone (the package nvidia-cudnn-frontend), cuDNN the one that LibTorch uses.
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h HINTS ${PPTRAIN_TORCH_DIR}/../include)
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${PPTRAIN_TORCH_DIR}/../nvidia/cudnn/include)
  find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${PPTRAIN_TORCH_DIR}/../nvidia/cudnn/lib)
  if(CUDNN_FRONTEND_INCLUDE_DIR AND CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY AND TARGET CUDA::nvrtc)
    add_library(cudnn::frontend INTERFACE IMPORTED)
    target_include_directories(cudnn::frontend SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE_DIR} ${CUDNN_INCLUDE_DIR})
    target_compile_definitions(cudnn::frontend INTERFACE CUDNN_FRONTEND_SKIP_JSON_LIB)
    target_link_libraries(cudnn::frontend INTERFACE ${CUDNN_LIBRARY} CUDA::cudart
                          CUDA::nvrtc)  # its headers call NVRTC too, in parts that nobody here uses
  else()
    message(STATUS "pptrain: attention without cuDNN: its frontend's headers, cuDNN or NVRTC were not found")
  endif()
endif()
message(STATUS "pptrain: CUDA back end ${PPTRAIN_HAS_CUDA}; LibTorch in ${PPTRAIN_TORCH_DIR}")

# MPI is optional, and used through its C interface; CMake finds that with a C compiler.
enable_language(C)
find_package(MPI COMPONENTS C)
find_package(Threads REQUIRED)
find_package(tomlplusplus REQUIRED)
find_package(CLI11 REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(Catch2 QUIET)
# Regular expressions and Unicode of tokenizers: libpcre2-dev, libutf8proc-dev. Packed texts: zlib1g-dev, libzstd-dev.
foreach(library pcre2 utf8proc zlib zstd)
  string(TOUPPER ${library} name)
  find_path(${name}_INCLUDE_DIR ${library}.h REQUIRED)
  find_library(${name}_LIBRARY NAMES ${library}-8 ${library} z REQUIRED)
  add_library(${library} INTERFACE IMPORTED)
  target_include_directories(${library} SYSTEM INTERFACE ${${name}_INCLUDE_DIR})
  target_link_libraries(${library} INTERFACE ${${name}_LIBRARY})
endforeach()

# Parquet is optional: Arrow's C++ libraries are those inside the Python package `pyarrow`, or the system's.
set(PPTRAIN_PYARROW_DIR "${PPTRAIN_TORCH_DIR}/../pyarrow" CACHE PATH "Folder of Arrow (include/ and libraries, as in pyarrow)")
file(GLOB arrow_library ${PPTRAIN_PYARROW_DIR}/libarrow.so.[0-9]*)
file(GLOB parquet_library ${PPTRAIN_PYARROW_DIR}/libparquet.so.[0-9]*)
if(arrow_library AND parquet_library AND EXISTS ${PPTRAIN_PYARROW_DIR}/include/parquet/arrow/reader.h)
  add_library(arrow::parquet INTERFACE IMPORTED)
  target_include_directories(arrow::parquet SYSTEM INTERFACE ${PPTRAIN_PYARROW_DIR}/include)
  target_link_libraries(arrow::parquet INTERFACE ${parquet_library} ${arrow_library} -Wl,-rpath,${PPTRAIN_PYARROW_DIR})
else()
  find_package(Arrow QUIET)
  find_package(Parquet QUIET)
  if(Arrow_FOUND AND Parquet_FOUND)
    add_library(arrow::parquet INTERFACE IMPORTED)
    target_link_libraries(arrow::parquet INTERFACE Parquet::parquet_shared Arrow::arrow_shared)
  else()
    message(STATUS "pptrain: no Parquet: neither pyarrow in ${PPTRAIN_PYARROW_DIR} nor Arrow's CMake packages")
  endif()
endif()
