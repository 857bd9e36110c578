// SPDX-License-Identifier: Apache-2.0
//
// Memory of a real PyTorch process, from its own allocator in both of its kinds, through the C API
// by ctypes: p2p_torch.py beside this program does it.
#include <dlfcn.h>
#include <spawn.h>

#include <filesystem>
#include <string>
#include <vector>

#include "peerlane/p2p.h"
#include "tests/gpu/two_processes.h"
#include "tests/os/child_process.h"

extern char** environ;

namespace peerlane::gputest {
namespace {

// 77 where there is no PyTorch.
int runTorch(const std::string& allocator) {
  Dl_info library{};
  if (::dladdr(reinterpret_cast<const void*>(&P2PGetVersion), &library) == 0) return -1;
  // The allocator's configuration is read from the environment of the process.
  std::vector<std::string> words{"env", "PYTORCH_CUDA_ALLOC_CONF=" + allocator, "python3",
                                 child::besideThis("p2p_torch.py"),
                                 std::filesystem::canonical(library.dli_fname).string()};
  std::vector<char*> pointers = child::pointersTo(words);
  pid_t pid = 0;
  if (::posix_spawnp(&pid, "env", nullptr, nullptr, pointers.data(), environ) != 0) return -1;
  return child::collect(pid, child::Clock::now() + std::chrono::minutes(5));
}

class P2pTorch : public testing::TestWithParam<const char*> {};

TEST_P(P2pTorch, TensorsGoThereAndBack) {
  PEERLANE_NEEDS_GPUS(1);
  if (inSoftware()) GTEST_SKIP() << "PyTorch needs a GPU";
  const int code = runTorch(GetParam());
  if (code == 77) GTEST_SKIP() << "there is no PyTorch here";
  EXPECT_EQ(code, 0);
}

INSTANTIATE_TEST_SUITE_P(Allocators, P2pTorch,
                         testing::Values("expandable_segments:False", "expandable_segments:True"));

}  // namespace
}  // namespace peerlane::gputest
