# SPDX-License-Identifier: Apache-2.0
# The tests of `peerlane bench`.

peerlane_test(NAME bench_parts_tests
  SOURCES bench/bench_options_test.cc measure/bench_pipe_test.cc bench/bench_report_test.cc measure/bench_samples_test.cc
          ceiling/ceiling_copy_test.cc
  LIBRARIES peerlane_bench_parts)
peerlane_test(NAME bench_run_tests SERIAL
  SOURCES bench/bench_run_test.cc LIBRARIES peerlane_bench_parts)
