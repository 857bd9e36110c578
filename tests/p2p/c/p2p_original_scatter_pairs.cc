// SPDX-License-Identifier: Apache-2.0
//
// Four threads, two pairs of an owner and a reader at once: the best link, and messages allowed
// beside.
#include <thread>

#include "tests/p2p/c/original_scatter.h"

int main(int, char**) {
  using namespace original;
  alarm(kAlarmSeconds);
  const Scatter scatter{P2P_LINK_AUTO, 5, false, false};
  Barrier barrier(4);  // one for both: the pairs run at the same time
  Fifo one("recvSendFifo"), two("recvSendFifo2");
  std::vector<std::thread> threads;
  for (const Fifo* fifo : {&one, &two}) {
    threads.emplace_back(
        [&barrier, &scatter, fifo] { ownObjects(fifo->path(), barrier, scatter); });
    threads.emplace_back(
        [&barrier, &scatter, fifo] { readObjects(fifo->path(), barrier, scatter); });
  }
  for (std::thread& thread : threads) thread.join();
  std::puts("[  PASSED  ] 1 test.");
  return 0;
}
