# cmake --install BUILD --prefix PREFIX: the program, its jobs, manual page and completions. PREFIX may be moved afterwards.
#
# Installed programs look for libraries beside them (PREFIX/lib/pptrain), then for the wheel `torch` beside PREFIX (where
# PREFIX is the folder of a package in site-packages), then in PPTRAIN_INSTALL_TORCH_DIR. Two further components put
# libraries into PREFIX/lib/pptrain: `--component libraries` what the system gave but for libc, C++'s and MPI's (which must
# be the launcher's), `--component torch` LibTorch.
include(GNUInstallDirs)
set(PPTRAIN_INSTALL_TORCH_DIR "${PPTRAIN_TORCH_DIR}" CACHE STRING
    "Where an installed program finds LibTorch when it is not beside it; empty: nowhere else")
set(whole_programs pptrain_whole)
if(TARGET pptrain_cuda)
  list(APPEND whole_programs pptrain_cuda)
endif()
set(install_rpath "$ORIGIN/../lib/pptrain" "$ORIGIN/../../torch/lib")
set(library_folders ${PPTRAIN_TORCH_DIR}/lib ${nvidia_lib_dirs})
foreach(dir ${nvidia_lib_dirs})
  string(REPLACE "${PPTRAIN_TORCH_DIR}/../" "$ORIGIN/../../" dir ${dir})
  list(APPEND install_rpath ${dir})
endforeach()
if(PPTRAIN_INSTALL_TORCH_DIR)
  set_target_properties(${whole_programs} PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)  # an MPI in a place of its own
  list(APPEND install_rpath ${PPTRAIN_INSTALL_TORCH_DIR}/lib)
  foreach(dir ${nvidia_lib_dirs})
    string(REPLACE "${PPTRAIN_TORCH_DIR}" "${PPTRAIN_INSTALL_TORCH_DIR}" dir ${dir})
    list(APPEND install_rpath ${dir})
  endforeach()
endif()
set_target_properties(pptrain ${whole_programs} PROPERTIES INSTALL_RPATH "${install_rpath}")

install(TARGETS pptrain RUNTIME COMPONENT pptrain)
install(TARGETS ${whole_programs} RUNTIME_DEPENDENCY_SET needed_libraries RUNTIME COMPONENT pptrain)
install(FILES ${PROJECT_BINARY_DIR}/pptrain.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT pptrain)
install(FILES ${PROJECT_BINARY_DIR}/generated/completions/pptrain DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT pptrain)
install(FILES ${PROJECT_BINARY_DIR}/generated/completions/_pptrain DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT pptrain)
install(FILES ${PROJECT_BINARY_DIR}/generated/completions/pptrain.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT pptrain)
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/pptrain COMPONENT pptrain)
install(FILES README.md LICENSE CHANGELOG.md CITATION.cff DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT pptrain)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT pptrain FILES_MATCHING PATTERN "*.md" PATTERN "*.svg" PATTERN "*.png")

set(of_torch "/torch/lib/" "/nvidia/[^/]+/lib/" "/(cusparselt|nvshmem)/lib/")
set(of_system "/lib(c|m|dl|rt|util|pthread|resolv|stdc\\+\\+|gcc_s)\\.so" "/ld-linux[^/]*$"
    "/lib(mpi|open-rte|open-pal|hwloc|pmix|event[^/]*|ucp|ucs|uct|ucm|udev|fabric)[.-]")
install(RUNTIME_DEPENDENCY_SET needed_libraries DIRECTORIES ${library_folders}
        PRE_EXCLUDE_REGEXES "^linux-vdso" POST_EXCLUDE_REGEXES ${of_torch} ${of_system}
        LIBRARY DESTINATION lib/pptrain COMPONENT libraries EXCLUDE_FROM_ALL)
install(RUNTIME_DEPENDENCY_SET needed_libraries DIRECTORIES ${library_folders}
        PRE_EXCLUDE_REGEXES "^linux-vdso" POST_INCLUDE_REGEXES ${of_torch} POST_EXCLUDE_REGEXES ".*"
        LIBRARY DESTINATION lib/pptrain COMPONENT torch EXCLUDE_FROM_ALL)
