# SPDX-License-Identifier: Apache-2.0
# `peerlane nixl`. Its tests need no NIXL: plug-ins of their own have the classes of NIXL's, right and wrong ones.

# They lie with the programs, from where a bundle takes them, and are loaded by programs without a sanitizer.
function(peerlane_engine_fixture NAME)
  add_library(${NAME} MODULE EXCLUDE_FROM_ALL nixl/engine_fixture.cc)
  target_compile_definitions(${NAME} PRIVATE ${ARGN})
  target_link_libraries(${NAME} PRIVATE peerlane_strict)
  target_compile_options(${NAME} PRIVATE -fno-sanitize=all)
  target_link_options(${NAME} PRIVATE -fno-sanitize=all)
  set_target_properties(${NAME} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} BUILD_RPATH $ORIGIN)
endfunction()

peerlane_engine_fixture(engine_fixture)
peerlane_engine_fixture(engine_fixture_argument FIXTURE_ARGUMENT)
peerlane_engine_fixture(engine_fixture_base_alone FIXTURE_BASE_ALONE)
peerlane_engine_fixture(engine_fixture_fewer FIXTURE_FEWER)
peerlane_engine_fixture(engine_fixture_library FIXTURE_LIBRARY)
peerlane_engine_fixture(engine_fixture_more FIXTURE_MORE)
peerlane_engine_fixture(engine_fixture_swapped FIXTURE_SWAPPED)
peerlane_engine_fixture(engine_fixture_two FIXTURE_API=2)
# Its relocations name no symbols.
peerlane_engine_fixture(engine_fixture_bound)
target_link_options(engine_fixture_bound PRIVATE -Wl,-Bsymbolic)

add_library(needed_fixture SHARED EXCLUDE_FROM_ALL nixl/needed_fixture.cc)
target_link_libraries(needed_fixture PRIVATE peerlane_strict)
target_compile_options(needed_fixture PRIVATE -fno-sanitize=all)
target_link_options(needed_fixture PRIVATE -fno-sanitize=all)
set_target_properties(needed_fixture PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_RUNTIME_OUTPUT_DIRECTORY})
target_link_libraries(engine_fixture_library PRIVATE needed_fixture)

peerlane_test(NAME nixl_command_tests LIBRARIES peerlane_nixl_command_parts SOURCES
  command_run.cc
  nixl/elf_vtable_test.cc
  nixl/nixl_command_test.cc
  nixl/plugin_folder_test.cc
  nixl/program_run_test.cc
  nixl/wheel_abi_test.cc)
add_dependencies(nixl_command_tests peerlane_command peerlane_nixl_command engine_fixture engine_fixture_argument engine_fixture_base_alone
  engine_fixture_bound engine_fixture_fewer engine_fixture_library engine_fixture_more engine_fixture_swapped
  engine_fixture_two)

peerlane_fuzz(NAME elf_vtable_fuzz SOURCES nixl/elf_vtable_fuzz.cc CORPUS corpus/elf_vtable
  LIBRARIES peerlane_nixl_command_parts)
