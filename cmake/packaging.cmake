# SPDX-License-Identifier: Apache-2.0
# cmake --install: the library, its public headers, and what find_package and pkg-config read.

include(CMakePackageConfigHelpers)

# Its GPUs are for tests, and a part of the build tree: who linked the installed library would miss them.
if(PEERLANE_SOFTWARE_GPU)
  install(CODE "message(FATAL_ERROR \"this build has GPUs in software, for tests; to install, configure with \
PEERLANE_CUDA=auto, on or off\")")
endif()

install(TARGETS peerlane EXPORT peerlaneTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
# The C API by itself: what uses it needs nothing of the rest, so its target comes without it.
install(TARGETS peerlane_p2p EXPORT peerlaneP2pTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(header IN LISTS PEERLANE_PUBLIC_HEADERS)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()
foreach(header IN LISTS PEERLANE_GENERATED_PUBLIC_HEADERS)
  cmake_path(GET header PARENT_PATH folder)
  install(FILES ${PROJECT_BINARY_DIR}/generated/${header}
          DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()
# What `make build` builds, and what is installed: no tests.
add_custom_target(command_line DEPENDS peerlane peerlane_p2p)
if(TARGET peerlane_command)
  add_dependencies(command_line peerlane_command peerlane_bench peerlane_nixl_command)
  install(TARGETS peerlane_command peerlane_bench peerlane_nixl_command DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
if(TARGET peerlane_nixl)
  add_dependencies(command_line peerlane_nixl)
  # Where `peerlane nixl` looks for it, from its own folder.
  install(TARGETS peerlane_nixl LIBRARY DESTINATION lib/peerlane/nixl)
endif()

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/peerlane)
install(EXPORT peerlaneTargets NAMESPACE peerlane:: DESTINATION ${package_folder})
install(EXPORT peerlaneP2pTargets NAMESPACE peerlane:: DESTINATION ${package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/peerlaneConfig.cmake.in
  ${PROJECT_BINARY_DIR}/peerlaneConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/peerlaneConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/peerlaneConfig.cmake
              ${PROJECT_BINARY_DIR}/peerlaneConfigVersion.cmake
        DESTINATION ${package_folder})
# Relative to the file itself, so that `cmake --install --prefix` may choose any place.
file(RELATIVE_PATH pc_to_prefix /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
configure_file(cmake/peerlane.pc.in peerlane.pc @ONLY)
configure_file(cmake/peerlane_p2p.pc.in peerlane_p2p.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/peerlane.pc ${PROJECT_BINARY_DIR}/peerlane_p2p.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
