# SPDX-License-Identifier: Apache-2.0
# CUDA, where there is a compiler for it. PEERLANE_CUDA=auto takes nvcc if it is found, on demands it, off leaves
# it out. The runtime is linked statically and finds the driver when the program runs, so that one binary serves
# machines with and without a GPU. Machine code for sm_80 and sm_90; later GPUs translate the PTX once.
# `software` takes CUDA's headers alone: the runtime is tests/fake/software_gpu, for the tests of the host's side.

set(PEERLANE_CUDA auto CACHE STRING "auto, on, off or software: whether GPUs are supported")
set_property(CACHE PEERLANE_CUDA PROPERTY STRINGS auto on off software)
if(NOT PEERLANE_CUDA MATCHES "^(auto|on|off|software)$")
  message(FATAL_ERROR "PEERLANE_CUDA is '${PEERLANE_CUDA}'; accepted: auto, on, off, software")
endif()
set(PEERLANE_CUDA_MINIMUM 12.4)
set(PEERLANE_HAS_CUDA OFF)
set(PEERLANE_SOFTWARE_GPU OFF)
# What is linked as the runtime.
set(PEERLANE_CUDA_RUNTIME CUDA::cudart_static)

if(PEERLANE_CUDA STREQUAL "software")
  find_path(PEERLANE_CUDA_INCLUDE cuda_runtime_api.h
    HINTS $ENV{CUDA_PATH}/include $ENV{CUDA_HOME}/include /usr/local/cuda/include)
  if(PEERLANE_CUDA_INCLUDE)
    file(STRINGS ${PEERLANE_CUDA_INCLUDE}/cuda.h cuda_version REGEX "^#define CUDA_VERSION [0-9]+")
    string(REGEX REPLACE "[^0-9]" "" cuda_version "${cuda_version}")
    if(cuda_version LESS 12040)
      set(cuda_reason "; the headers in ${PEERLANE_CUDA_INCLUDE} are of version ${cuda_version}; need 12040")
    else()
      set(PEERLANE_HAS_CUDA ON)
      set(PEERLANE_SOFTWARE_GPU ON)
      # Not for those who link the installed library.
      set(PEERLANE_CUDA_RUNTIME $<BUILD_INTERFACE:peerlane_software_gpu>)
    endif()
  else()
    set(cuda_reason "; CUDA's headers were not found")
  endif()
elseif(NOT PEERLANE_CUDA STREQUAL "off")
  find_program(PEERLANE_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_PATH}/bin $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(PEERLANE_NVCC)
    set(CMAKE_CUDA_COMPILER ${PEERLANE_NVCC} CACHE FILEPATH "the CUDA compiler")
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    if(CUDAToolkit_VERSION VERSION_LESS PEERLANE_CUDA_MINIMUM)
      set(cuda_reason "the toolkit is ${CUDAToolkit_VERSION}; need ${PEERLANE_CUDA_MINIMUM} or newer")
    else()
      set(PEERLANE_HAS_CUDA ON)
      set(PEERLANE_NEEDS_CUDA_TOOLKIT ON)
    endif()
  else()
    set(cuda_reason "nvcc was not found; put it on PATH or set CUDACXX")
  endif()
  if(NOT PEERLANE_HAS_CUDA AND PEERLANE_CUDA STREQUAL "on")
    message(FATAL_ERROR "PEERLANE_CUDA=on: ${cuda_reason}")
  endif()
endif()

if(PEERLANE_SOFTWARE_GPU)
  message(STATUS "GPUs: in software (headers of CUDA in ${PEERLANE_CUDA_INCLUDE})")
  add_library(peerlane_cuda_strict INTERFACE)
elseif(PEERLANE_HAS_CUDA)
  message(STATUS "GPUs: CUDA ${CUDAToolkit_VERSION}")
  # CMake 3.25 does not know that nvcc speaks C++20, which our targets ask of every language.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  # Device code of this project, whoever compiles it. -lineinfo costs nothing at run time.
  add_library(peerlane_cuda_strict INTERFACE)
  target_compile_options(peerlane_cuda_strict INTERFACE
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings -lineinfo -Xcompiler=-Wall>)
  # For those who link through pkg-config, on a machine whose toolkit may be elsewhere.
  set(PEERLANE_CUDA_LIBS " -L\${cudadir}/lib64 -lcudart_static -ldl -lrt")
else()
  message(STATUS "GPUs: not supported by this build (${PEERLANE_CUDA}${cuda_reason})")
endif()
