# How the project's own targets are compiled: headers parsed once, small files together, CUDA's only into programs with it.

# The headers that most files include, parsed once: `pptrain_plain_headers` for rooms that need no LibTorch, and
# `pptrain_torch_headers`. Only what changes never, so that no change of ours compiles everything anew.
set(plain_headers <algorithm> <array> <atomic> <charconv> <chrono> <cmath> <condition_variable> <cstddef> <cstdint> <cstring> <deque>
    <exception> <filesystem> <fstream> <functional> <initializer_list> <iterator> <limits> <map> <memory> <mutex> <numeric>
    <optional> <ranges> <set> <span> <sstream> <string> <string_view> <system_error> <thread> <tuple> <type_traits>
    <unordered_map> <utility> <variant> <vector> <spdlog/fmt/fmt.h> <spdlog/fmt/ranges.h> <spdlog/spdlog.h>)
set(torch_headers <ATen/core/Tensor.h> <ATen/ops/empty.h> <ATen/ops/empty_like.h> <ATen/ops/zeros.h>)
function(pptrain_headers name)
  file(WRITE ${PROJECT_BINARY_DIR}/generated/${name}.cpp "")
  add_library(${name} OBJECT ${PROJECT_BINARY_DIR}/generated/${name}.cpp)
  target_link_libraries(${name} PRIVATE pptrain_options)
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()
pptrain_headers(pptrain_plain_headers ${plain_headers})
pptrain_headers(pptrain_torch_headers ${plain_headers} ${torch_headers})
target_link_libraries(pptrain_torch_headers PRIVATE torch::cpu)

# pptrain_compile_together(TARGET [PLAIN] [FILES n]): precompiled headers (PLAIN: without LibTorch's), and n source files
# (6 unless given) in one compilation. Names in unnamed namespaces must then differ within a folder.
function(pptrain_compile_together target)
  cmake_parse_arguments(C "PLAIN" "FILES" "" ${ARGN})
  if(NOT C_FILES)
    set(C_FILES 6)
  endif()
  set(headers pptrain_torch_headers)
  if(C_PLAIN)
    set(headers pptrain_plain_headers)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${headers})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${C_FILES} UNITY_BUILD_RELOCATABLE ON)
endfunction()

# pptrain_library(NAME PUBLIC ... PRIVATE ... [PLAIN] [FILES n] [EXCLUDE regex] [ALONE regex]): a target of the *.cpp of the folder and of
# those inside it. PLAIN: it needs no LibTorch. ALONE: files that are compiled
# alone, since they are of one form and their functions have the same names.
function(pptrain_library name)
  cmake_parse_arguments(L "PLAIN" "EXCLUDE;ALONE;FILES" "PUBLIC;PRIVATE" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  if(L_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "${L_EXCLUDE}")
  endif()
  add_library(${name} STATIC ${sources})
  if(L_ALONE)
    list(FILTER sources INCLUDE REGEX "${L_ALONE}")
    set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  target_link_libraries(${name} PUBLIC ${L_PUBLIC} PRIVATE ${L_PRIVATE})
  if(L_PLAIN)
    pptrain_compile_together(${name} PLAIN FILES ${L_FILES})
  else()
    pptrain_compile_together(${name} FILES ${L_FILES})
  endif()
endfunction()

# Programs with CUDA take `pptrain_cuda_back_end`, all others have the files named no_*, which lie in the rooms' libraries: where a
# program has its objects, the linker has no use for those. CUDA's libraries cost every start a fifth of a second.
add_library(pptrain_cuda_back_end INTERFACE)
# pptrain_cuda_back_end(NAME SOURCES ... LIBRARIES ...): a room's part of it, target pptrain_cuda_NAME.
function(pptrain_cuda_back_end name)
  cmake_parse_arguments(B "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(pptrain_cuda_${name} OBJECT ${B_SOURCES})
  target_link_libraries(pptrain_cuda_${name} PUBLIC ${B_LIBRARIES} torch::cuda)
  target_sources(pptrain_cuda_back_end INTERFACE $<TARGET_OBJECTS:pptrain_cuda_${name}>)
  target_link_libraries(pptrain_cuda_back_end INTERFACE ${B_LIBRARIES} torch::cuda)
endfunction()
