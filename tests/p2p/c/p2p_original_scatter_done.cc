// SPDX-License-Identifier: Apache-2.0
//
// Two processes, batches of scattered objects, each of them followed by Done; without buffers for
// messages, and with a heartbeat.
#include "tests/p2p/c/original_scatter.h"

int main(int, char**) {
  using namespace original;
  const Scatter scatter{P2P_LINK_AUTO, 5, true, true};
  Barrier barrier(2);
  Fifo fifo("recvSendFifo");
  return runTwoProcesses([&] { ownObjects(fifo.path(), barrier, scatter); },
                         [&] { readObjects(fifo.path(), barrier, scatter); });
}
