# SPDX-License-Identifier: Apache-2.0
# The control messages: C++ accessors generated from the schema; include "peerlane/session/wire/control_generated.h".
# Only sources inside the library may include the result: FlatBuffers is not part of the public interface.

add_custom_target(generated)  # all sources that the build makes; what reads the tree needs them
set(schema ${PROJECT_SOURCE_DIR}/peerlane/session/wire/control.fbs)
if(EXISTS ${schema})
  set(folder ${PROJECT_BINARY_DIR}/generated/peerlane/session/wire)
  add_custom_command(
    OUTPUT ${folder}/control_generated.h
    COMMAND ${PEERLANE_FLATC} --cpp --cpp-std c++17 --scoped-enums --warnings-as-errors
            -o ${folder} ${schema}
    DEPENDS ${schema}
    COMMENT "Generating control_generated.h")
  target_sources(peerlane PRIVATE ${folder}/control_generated.h)
  add_custom_target(peerlane_control_schema DEPENDS ${folder}/control_generated.h)
  add_dependencies(peerlane peerlane_control_schema)
  add_dependencies(generated peerlane_control_schema)
endif()
