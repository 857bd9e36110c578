// SPDX-License-Identifier: Apache-2.0
//
// What tests of the software GPU have: a process for each, for a device that has failed stays so.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>

namespace peerlane {

#define IS_OK(call) EXPECT_EQ(cudaSuccess, (call))

inline bool inProcess(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::fflush(nullptr);
    std::_Exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

inline cudaStream_t makeStream() {
  cudaStream_t stream = nullptr;
  IS_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

}  // namespace peerlane
