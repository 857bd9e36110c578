# SPDX-License-Identifier: Apache-2.0
# The libraries Peerlane builds on, all from the distribution's packages (scripts/packages.txt).

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)
# Its header alone: libcrypto itself is looked up by programs that encrypt data (transport/tcp/aead).
find_path(PEERLANE_OPENSSL_INCLUDE openssl/evp.h REQUIRED)
find_path(PEERLANE_ASIO_INCLUDE asio.hpp REQUIRED)
find_path(PEERLANE_FLATBUFFERS_INCLUDE flatbuffers/flatbuffers.h REQUIRED)
find_program(PEERLANE_FLATC flatc REQUIRED)
if(PEERLANE_TESTS)
  find_package(GTest REQUIRED)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
endif()
