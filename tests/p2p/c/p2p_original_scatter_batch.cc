// SPDX-License-Identifier: Apache-2.0
//
// Two threads: objects of many blocks, scattered from host memory of the other side in batches.
#include <thread>

#include "tests/p2p/c/original_scatter.h"

int main(int, char**) {
  using namespace original;
  alarm(kAlarmSeconds);
  const Scatter scatter{P2P_LINK_ROCE, 5, false, false};
  Barrier barrier(2);
  Fifo fifo("recvSendFifo");
  std::thread owner([&] { ownObjects(fifo.path(), barrier, scatter); });
  std::thread reader([&] { readObjects(fifo.path(), barrier, scatter); });
  owner.join();
  reader.join();
  std::puts("[  PASSED  ] 1 test.");
  return 0;
}
