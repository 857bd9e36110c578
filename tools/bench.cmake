# SPDX-License-Identifier: Apache-2.0
# `peerlane bench`. A library of its own, so that its tests can link it.

add_library(peerlane_bench_parts STATIC EXCLUDE_FROM_ALL
  bench_cancel.cc
  bench_child.cc
  bench_connect.cc
  bench_copy.cc
  bench_endpoint.cc
  bench_memory.cc
  bench_message.cc
  bench_options.cc
  bench_p2p.cc
  bench_pair.cc
  bench_pingpong.cc
  bench_pipe.cc
  bench_post.cc
  bench_report.cc
  bench_run.cc
  bench_samples.cc
  ceiling_copy.cc
  ceiling_pingpong.cc
  ceiling_socket.cc)
target_include_directories(peerlane_bench_parts SYSTEM PRIVATE ${PEERLANE_JSON_INCLUDE})
target_link_libraries(peerlane_bench_parts PUBLIC peerlane_command_parts
  PRIVATE fmt::fmt peerlane_strict)
# The C API, in the program like everything else.
target_sources(peerlane_bench_parts PRIVATE $<TARGET_OBJECTS:peerlane_p2p_parts>)
peerlane_precompile(peerlane_bench_parts)

# Between GPUs; it has kernels of its own.
if(PEERLANE_HAS_CUDA AND NOT PEERLANE_SOFTWARE_GPU)
  target_sources(peerlane_bench_parts PRIVATE
    bench_gpu.cc
    bench_gpu_child.cc
    bench_gpu_connect.cc
    bench_gpu_contest.cc
    bench_gpu_copy.cc
    bench_gpu_lists.cc
    bench_gpu_memory.cc
    bench_gpu_messages.cc
    bench_gpu_pair.cc
    bench_gpu_pattern.cu
    bench_gpu_pingpong.cc
    bench_gpu_recorded.cc
    bench_gpu_report.cc
    bench_gpu_request.cc
    bench_gpu_side.cc
    bench_gpu_suite.cc
    bench_gpu_tune.cc
    bench_port.cc
    bench_port_kernels.cu
    bench_port_side.cc
    ceiling_cuda.cu)
  target_link_libraries(peerlane_bench_parts PRIVATE ${PEERLANE_CUDA_RUNTIME} peerlane_cuda_strict)
else()
  target_sources(peerlane_bench_parts PRIVATE bench_gpu_absent.cc)
endif()

target_sources(peerlane_command PRIVATE bench_command.cc)
target_link_libraries(peerlane_command PRIVATE peerlane_bench_parts)
