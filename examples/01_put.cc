// SPDX-License-Identifier: Apache-2.0
//
// Two contexts (here in one process; elsewhere in two, the ticket travels by any means) and one
// put.
#include <cstdio>
#include <cstring>

#include "peerlane/peerlane.h"

using namespace std::chrono_literals;

int main() {
  // The receiving side: memory that others may write, and a ticket by which they find it.
  auto receiver = peerlane::Context::create().value();
  auto inbox = receiver->allocate(1 << 20).value();

  // The sending side knows nothing but the ticket and the 64 bytes of share().
  auto sender = peerlane::Context::create().value();
  auto peer = sender->connect(receiver->ticket()).value();
  auto remote = peer.importRegion(inbox.share()).value();
  auto local = sender->allocate(1 << 20).value();
  std::memset(local.data(), 42, local.bytes());

  const peerlane::Block block{&local, 0, &remote, 0, local.bytes()};
  auto transfer = peerlane::put(peer, {&block, 1}, {.notify = {.signal = 0}}).value();
  if (!transfer.wait(1s).isOk()) return 1;

  // The receiver learns of it by a counter that moves only after the bytes.
  auto from = receiver->accept(1s).value();
  if (!peerlane::Signal::create(from, 0).value().wait(1, 1s).isOk()) return 1;
  std::printf("the last byte is %d, over link %s\n",
              static_cast<int>(inbox.data()[inbox.bytes() - 1]), peer.route().link.c_str());
}
