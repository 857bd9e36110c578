# SPDX-License-Identifier: Apache-2.0
# `peerlane nixl`: a program of its own as `peerlane bench` is; what it is made of is a library, so that its tests can link it.

add_library(peerlane_nixl_command_parts STATIC EXCLUDE_FROM_ALL
  nixl/elf_vtable.cc
  nixl/file_content.cc
  nixl/nixl_wheel.cc
  nixl/plugin_folder.cc
  nixl/plugin_parts.cc
  nixl/program_run.cc
  nixl/python_answer.cc
  nixl/python_scripts.cc
  nixl/transfer_check.cc
  nixl/wheel_abi.cc)
target_link_libraries(peerlane_nixl_command_parts PUBLIC peerlane_command_parts PRIVATE fmt::fmt peerlane_strict)
peerlane_unite(peerlane_nixl_command_parts OFF_THE_PATH tools/nixl)

add_executable(peerlane_nixl_command command_line.cc nixl/nixl_command.cc nixl_main.cc)
set_target_properties(peerlane_nixl_command PROPERTIES OUTPUT_NAME peerlane-nixl)
target_link_libraries(peerlane_nixl_command PRIVATE peerlane_nixl_command_parts)
peerlane_command_program(peerlane_nixl_command)
