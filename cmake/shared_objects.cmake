# SPDX-License-Identifier: Apache-2.0
# peerlane::peerlane, for targets of this tree: the static library, or, for programs that ask for it, a shared one of the
# same objects. A hundred test programs with a copy each would be twenty times as large as one library beside them
# (scripts/bundle.sh), and take longer to link. It is not installed: nothing of it is a stable interface.

# Sanitizers and coverage want one program without borders, and GPUs in software are part of the program.
if(PEERLANE_SANITIZE OR PEERLANE_COVERAGE OR PEERLANE_SOFTWARE_GPU OR PEERLANE_FUZZ)
  set(PEERLANE_SHARED_TESTS OFF)
else()
  set(PEERLANE_SHARED_TESTS ${PEERLANE_TESTS})
endif()

add_library(peerlane_linked INTERFACE)
add_library(peerlane::peerlane ALIAS peerlane_linked)
if(NOT PEERLANE_SHARED_TESTS)
  target_link_libraries(peerlane_linked INTERFACE peerlane)
  function(peerlane_share)
  endfunction()
  return()
endif()

add_library(peerlane_shared SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:peerlane>)
set_target_properties(peerlane_shared PROPERTIES LINKER_LANGUAGE CXX OUTPUT_NAME peerlane
  LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
target_compile_features(peerlane_shared INTERFACE cxx_std_20)
target_include_directories(peerlane_shared INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/generated)
target_link_libraries(peerlane_shared PUBLIC Threads::Threads
  PRIVATE fmt::fmt spdlog::spdlog PkgConfig::sodium PkgConfig::hwloc ${CMAKE_DL_LIBS})
if(PEERLANE_HAS_CUDA)
  target_link_libraries(peerlane_shared PRIVATE ${PEERLANE_CUDA_RUNTIME})
endif()
target_link_libraries(peerlane_linked INTERFACE
  $<IF:$<BOOL:$<TARGET_PROPERTY:PEERLANE_SHARED>>,peerlane_shared,peerlane>)

# These programs take the shared library, also where a library between them and it says peerlane::peerlane.
function(peerlane_share)
  set_target_properties(${ARGN} PROPERTIES PEERLANE_SHARED ON)
endfunction()
