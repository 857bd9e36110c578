// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/shm/knock_line.h"

#include <array>
#include <utility>
#include <vector>

#include "peerlane/os/unix_peer.h"

namespace peerlane {

bool KnockLine::drain() {
  const MutexLock lock(mutex_);
  bool heard = false;
  return drainLocked(heard);
}

bool KnockLine::drainLocked(bool& heard) {
  std::array<std::byte, 256> bytes;
  // Bounded: a peer that knocks without end must not keep this thread from other work.
  for (int i = 0; i < 16; ++i) {
    std::vector<Fd> came;
    const Result<size_t> got = recvWithFds(socket_, bytes, came);
    for (Fd& one : came) {
      isLost_ = !one;
      given_ = std::move(one);
    }
    heard |= got && *got != 0;
    if (!got || *got == 0) return got.status().code() == Code::kTryAgain;
  }
  return true;
}

Status KnockLine::give(const Fd& fd) {
  const std::byte knock{1};
  const int one = fd.get();
  return sendWithFds(socket_, {&knock, 1}, {&one, 1}).status();
}

Result<Fd> KnockLine::take() {
  bool heard = false;
  Fd given;
  bool isLost = false;
  {
    const MutexLock lock(mutex_);
    if (!given_ && !isLost_) (void)drainLocked(heard);
    isLost = std::exchange(isLost_, false);
    given = std::exchange(given_, Fd());
  }
  if (heard && heard_) heard_();
  if (isLost)
    return Status(
        Code::kUnavailable,
        "no descriptor was left for one that the peer gave; `ulimit -n` raises the limit");
  return given;
}

}  // namespace peerlane
