# SPDX-License-Identifier: Apache-2.0
# `peerlane bench`: a program of its own, build/bin/peerlane-bench, so that `make demo` need not build it; what it is made of is
# a library, so that its tests can link it.

add_library(peerlane_bench_parts STATIC EXCLUDE_FROM_ALL
  bench/bench_child.cc
  bench/bench_run.cc
  bench/host/bench_cancel.cc
  bench/host/bench_connect.cc
  bench/host/bench_copy.cc
  bench/host/bench_message.cc
  bench/host/bench_pingpong.cc
  bench/host/bench_post.cc
  bench/host/bench_trigger.cc
  bench/p2p/bench_p2p.cc
  bench/setup/bench_setup.cc
  bench/setup/crowded_process.cc
  bench/setup/region_pieces.cc
  bench/sides/bench_endpoint.cc
  bench/sides/bench_memory.cc
  bench/sides/bench_options.cc
  bench/sides/bench_pair.cc
  bench/sides/bench_report.cc
  bench/sides/bench_tune_file.cc
  ceiling/ceiling_copy.cc
  ceiling/ceiling_pingpong.cc
  ceiling/ceiling_socket.cc
  ceiling/raw_team.cc
  measure/bench_pipe.cc
  measure/bench_samples.cc)
target_include_directories(peerlane_bench_parts SYSTEM PRIVATE ${PEERLANE_JSON_INCLUDE})
target_link_libraries(peerlane_bench_parts PUBLIC peerlane_command_parts
  PRIVATE fmt::fmt peerlane_strict)
# The C API, in the program like everything else.
target_sources(peerlane_bench_parts PRIVATE $<TARGET_OBJECTS:peerlane_p2p_parts>)
peerlane_precompile(peerlane_bench_parts)

# Between GPUs; it has kernels of its own.
if(PEERLANE_HAS_CUDA AND NOT PEERLANE_SOFTWARE_GPU)
  target_sources(peerlane_bench_parts PRIVATE
    bench/gpu/bench_gpu.cc
    bench/gpu/bench_gpu_child.cc
    bench/gpu/bench_gpu_connect.cc
    bench/gpu/bench_gpu_contest.cc
    bench/gpu/bench_gpu_copy.cc
    bench/gpu/bench_gpu_lists.cc
    bench/gpu/bench_gpu_memory.cc
    bench/gpu/bench_gpu_messages.cc
    bench/gpu/bench_gpu_pair.cc
    bench/gpu/bench_gpu_pattern.cu
    bench/gpu/bench_gpu_pingpong.cc
    bench/gpu/bench_gpu_posting.cc
    bench/gpu/bench_gpu_recorded.cc
    bench/gpu/bench_gpu_report.cc
    bench/gpu/bench_gpu_request.cc
    bench/gpu/bench_gpu_side.cc
    bench/gpu/bench_gpu_suite.cc
    bench/gpu/bench_gpu_tune.cc
    bench/port/bench_port.cc
    bench/port/bench_port_kernels.cu
    bench/port/bench_port_side.cc
    ceiling/ceiling_cuda.cu)
  target_link_libraries(peerlane_bench_parts PRIVATE ${PEERLANE_CUDA_RUNTIME} peerlane_cuda_strict)
else()
  target_sources(peerlane_bench_parts PRIVATE bench/port/bench_gpu_absent.cc)
endif()

peerlane_unite(peerlane_bench_parts ON_THE_PATH tools/bench/host tools/ceiling)

add_executable(peerlane_bench bench/bench_command.cc bench_main.cc command_line.cc)
set_target_properties(peerlane_bench PROPERTIES OUTPUT_NAME peerlane-bench)
target_link_libraries(peerlane_bench PRIVATE peerlane_bench_parts)
peerlane_command_program(peerlane_bench)
