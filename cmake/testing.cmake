# SPDX-License-Identifier: Apache-2.0
# Two functions that make every test of the tree.
#
#   peerlane_test(NAME memory_tests SOURCES region_test.cc ... [CONCURRENT] [SERIAL] [SOAK] [APART]
#                 [TIMEOUT seconds] [LIBRARIES ...])
#     One GoogleTest binary, one ctest entry. CONCURRENT: threads are its subject, so it runs under the
#     thread sanitizer too. SERIAL: it measures time or memory, nothing else runs beside it.
#     SOAK: minutes long; `make soak` runs it and `make test` does not.
#     APART: its sources use one name for several things, so each is compiled alone also where PEERLANE_UNITY is on.
#   peerlane_fuzz(NAME ticket_fuzz SOURCES ticket_fuzz.cc CORPUS corpus/ticket [LIBRARIES ...])
#     A source that defines LLVMFuzzerTestOneInput. Everywhere: a test that replays the corpus and a fixed
#     number of mutations of it. With PEERLANE_FUZZ: the libFuzzer binary bin/<NAME> as well.

set(PEERLANE_RESULTS ${PROJECT_BINARY_DIR}/test-results)
file(MAKE_DIRECTORY ${PEERLANE_RESULTS})
# Lines "program corpus", written by tests/CMakeLists.txt for scripts/fuzz.sh and scripts/bundle.sh.
set_property(GLOBAL PROPERTY PEERLANE_FUZZ_TARGETS "")
set_property(GLOBAL PROPERTY PEERLANE_REPLAY_TARGETS "")

# GoogleTest and the standard headers every test includes, parsed once for all binaries. A program, because a
# precompiled header must be made with the same -fPIE as those who use it.
add_executable(peerlane_test_headers ${CMAKE_CURRENT_LIST_DIR}/test_headers.cc)
set_target_properties(peerlane_test_headers PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/test-headers)
target_link_libraries(peerlane_test_headers PRIVATE GTest::gtest peerlane_strict)
# What is tested is the library as it ships; optimising the tests themselves only costs time.
set(PEERLANE_TEST_OPTIONS $<$<CONFIG:Release>:-O1>)
if(PEERLANE_SANITIZE STREQUAL "address")
  # The library is what is checked. Scopes of the tests themselves cost half of the time to compile them.
  list(APPEND PEERLANE_TEST_OPTIONS -fno-sanitize=undefined -fno-sanitize-address-use-after-scope)
endif()
target_compile_options(peerlane_test_headers PRIVATE ${PEERLANE_TEST_OPTIONS})
if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)  # see peerlane_precompile
  target_precompile_headers(peerlane_test_headers PRIVATE
    <gtest/gtest.h> <algorithm> <atomic> <chrono> <functional> <memory> <string> <thread> <vector>)
endif()

add_library(peerlane_fuzz_replay STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/fuzz_replay.cc)
target_link_libraries(peerlane_fuzz_replay PRIVATE peerlane_strict)

# `ninja tests` builds all of them, `ninja concurrent_tests` what the thread sanitizer needs.
add_custom_target(tests)
add_custom_target(concurrent_tests)
add_custom_target(fuzz_targets)

# The sources of a test program, several as one where PEERLANE_UNITY is on: most of the time goes into headers here, too.
# Not by properties of the sources, because programs share some. A local name may be another file's global one; the tsan build
# warns where it hides one of its own file.
function(peerlane_unite_tests NAME OUTPUT)
  set(result "")
  set(most 6)  # files in one, which bounds the memory that the compiler takes
  set(count 0)
  foreach(source IN LISTS ARGN)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE inside)
    if(NOT PEERLANE_UNITY OR NOT inside MATCHES "^[^.].*\\.cc$")
      list(APPEND result ${source})
      continue()
    endif()
    math(EXPR part "${count} / ${most}")
    if(NOT DEFINED content_${part})
      set(content_${part} "#pragma GCC diagnostic ignored \"-Wshadow\"\n")
    endif()
    math(EXPR count "${count} + 1")
    string(APPEND content_${part} "#include \"${inside}\"\n")
    set(last ${part})
  endforeach()
  if(count)
    foreach(part RANGE ${last})
      set(file ${PROJECT_BINARY_DIR}/units/${NAME}/${NAME}_${part}.cc)
      file(CONFIGURE OUTPUT ${file} CONTENT "${content_${part}}" @ONLY)
      list(APPEND result ${file})
    endforeach()
  endif()
  set(${OUTPUT} ${result} PARENT_SCOPE)
endfunction()

function(peerlane_test)
  cmake_parse_arguments(arg "CONCURRENT;SERIAL;SOAK;APART" "NAME;TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SOURCES)
    message(FATAL_ERROR "peerlane_test(NAME x SOURCES ...): not understood: ${ARGV}")
  endif()
  if(NOT arg_APART)
    peerlane_unite_tests(${arg_NAME} arg_SOURCES ${arg_SOURCES})
  endif()
  add_executable(${arg_NAME} ${arg_SOURCES})
  target_link_libraries(${arg_NAME} PRIVATE
    peerlane::peerlane peerlane_strict ${arg_LIBRARIES} GTest::gtest GTest::gtest_main)
  peerlane_share(${arg_NAME})
  target_compile_options(${arg_NAME} PRIVATE ${PEERLANE_TEST_OPTIONS})
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    target_precompile_headers(${arg_NAME} REUSE_FROM peerlane_test_headers)
  endif()
  if(PEERLANE_SANITIZE STREQUAL "thread")
    target_sources(${arg_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/tests/thread_sanitizer_suppressions.cc)
  endif()
  add_test(NAME ${arg_NAME}
    COMMAND ${arg_NAME} --gtest_output=json:${PEERLANE_RESULTS}/${arg_NAME}.json)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)  # to end what hangs: far beyond what a busy machine takes
    if(arg_SOAK)
      set(arg_TIMEOUT 3600)
    endif()
  endif()
  if(PEERLANE_SANITIZE)
    math(EXPR arg_TIMEOUT "${arg_TIMEOUT} * 3")
  endif()
  set(labels "")
  if(arg_CONCURRENT)
    list(APPEND labels concurrent)
    add_dependencies(concurrent_tests ${arg_NAME})
  endif()
  if(arg_SOAK)
    list(APPEND labels soak)
  endif()
  set_tests_properties(${arg_NAME} PROPERTIES
    TIMEOUT ${arg_TIMEOUT} LABELS "${labels}" RUN_SERIAL ${arg_SERIAL})
  add_dependencies(tests ${arg_NAME})
endfunction()

function(peerlane_fuzz)
  cmake_parse_arguments(arg "" "NAME;CORPUS" "SOURCES;LIBRARIES" ${ARGN})
  if(arg_UNPARSED_ARGUMENTS OR NOT arg_NAME OR NOT arg_SOURCES OR NOT arg_CORPUS)
    message(FATAL_ERROR "peerlane_fuzz(NAME x SOURCES ... CORPUS dir): not understood: ${ARGV}")
  endif()
  set(corpus ${CMAKE_CURRENT_SOURCE_DIR}/${arg_CORPUS})
  if(NOT IS_DIRECTORY ${corpus})
    message(FATAL_ERROR "peerlane_fuzz ${arg_NAME}: the corpus folder ${corpus} does not exist")
  endif()
  add_executable(${arg_NAME}_replay ${arg_SOURCES})
  target_link_libraries(${arg_NAME}_replay PRIVATE
    peerlane_fuzz_replay peerlane::peerlane peerlane_strict ${arg_LIBRARIES})
  peerlane_share(${arg_NAME}_replay)
  add_test(NAME ${arg_NAME}_replay COMMAND ${arg_NAME}_replay ${corpus})
  set_tests_properties(${arg_NAME}_replay PROPERTIES TIMEOUT 120 LABELS fuzz)
  add_dependencies(tests ${arg_NAME}_replay)
  set_property(GLOBAL APPEND_STRING PROPERTY PEERLANE_REPLAY_TARGETS
    "$<TARGET_FILE:${arg_NAME}_replay> ${corpus}\n")
  if(PEERLANE_FUZZ)
    add_executable(${arg_NAME} ${arg_SOURCES})
    target_link_libraries(${arg_NAME} PRIVATE
      peerlane::peerlane peerlane_strict ${arg_LIBRARIES} -fsanitize=fuzzer)
    add_dependencies(fuzz_targets ${arg_NAME})
    set_property(GLOBAL APPEND_STRING PROPERTY PEERLANE_FUZZ_TARGETS
      "$<TARGET_FILE:${arg_NAME}> ${corpus}\n")
  endif()
endfunction()
