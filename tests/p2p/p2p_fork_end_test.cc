// SPDX-License-Identifier: Apache-2.0
//
// A forked child of a process that uses p2p.h ends by any way, and asks for no lock of its parent.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "tests/core/held_locks.h"
#include "tests/p2p/p2p_pair.h"

namespace peerlane::p2p_test {
namespace {

// With a thread that waits in each end of the pair.
struct Objects {
  Objects() {
    EXPECT_EQ(P2PHostStreamCreate(&stream), HCCL_SUCCESS);
    EXPECT_EQ(P2PRegisterHostMem(memory.data(), memory.size(), &info, P2P_SEGMENT_READ_WRITE),
              HCCL_SUCCESS);
    EXPECT_EQ(P2PImportHostSegment(info), HCCL_SUCCESS);
    wait([this] {
      if (P2PRecv(&got, 1, HCCL_DATA_TYPE_INT64, pair.client(), nullptr) == HCCL_SUCCESS)
        (void)P2PCommSynchronize(pair.client(), 600'000);
    });
    wait([this] {
      if (P2PRecv(&got, 1, HCCL_DATA_TYPE_INT64, pair.root(), stream) == HCCL_SUCCESS)
        (void)P2PCommSynchronize(pair.root(), 600'000);
    });
  }
  // The threads stay until the process ends.
  static void wait(std::function<void()> call) {
    std::promise<void> begun;
    auto hasBegun = begun.get_future();
    std::thread([&begun, call = std::move(call)] {
      begun.set_value();
      call();
    }).detach();
    hasBegun.wait();
  }

  Pair pair;
  aclrtStream stream = nullptr;
  std::vector<uint8_t> memory = pattern(4096, 1);
  P2pSegmentInfo info{};
  uint64_t got = 0;
};

std::unique_ptr<Objects> objects;  // destroyed by exit(), too

// In a process of its own, whose threads wait until it ends.
void expectEnds(const std::function<void()>& way) {
  const pid_t process = ::fork();
  if (process == 0) {
    ::alarm(120);
    // With it come libraries that take locks when they are loaded, and again by exit().
    (void)::dlopen("libibverbs.so.1", RTLD_NOW);
    held_locks::noteLocks();
    objects = std::make_unique<Objects>();
    const pid_t child = held_locks::forkWithLocksHeld();
    if (child == 0) {
      ::alarm(60);
      way();
      std::exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(P2pForkEnd, ByExit) {
  expectEnds([] {});
}
TEST(P2pForkEnd, ByUnderscoreExit) {
  expectEnds([] { ::_exit(0); });
}
TEST(P2pForkEnd, WithAllGivenBack) {
  expectEnds([] {
    (void)P2PUnimportSegment(objects->info);
    (void)P2PUnregisterMem(&objects->info, kSoonMs);
    (void)P2PHostStreamDestroy(objects->stream);
    objects.reset();
  });
}

}  // namespace
}  // namespace peerlane::p2p_test
