// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/signal.h"

#include "peerlane/program/word.h"
#include "peerlane/session/peer_core.h"

namespace peerlane {

Result<Signal> Signal::create(const Peer& peer, uint32_t number) {
  static_assert(kCount == slab::kSignals);
  if (!peer)
    return Status(Code::kInvalidArgument,
                  "an empty Peer; take one from Context::connect or accept");
  if (number >= kCount)
    return Status(Code::kInvalidArgument, "signal " + std::to_string(number) + "; there are 0 to " +
                                              std::to_string(kCount - 1));
  return Signal(
      peer, peer.core()->slab() + slab::kSignalsOffset + uint64_t{number} * slab::kWordStrideBytes);
}

// Who looks in a loop is as good as one who waits: its peer need not ring.
uint64_t Signal::value() const {
  peer_.core()->progress().looked();
  return word();
}

uint64_t Signal::word() const {
  return loadWord(word_, Width::k64);
}

Status Signal::wait(uint64_t value, std::chrono::nanoseconds timeout) const {
  const auto reached = [&] { return word() >= value; };
  if (reached()) return Status::ok();
  PeerCore& core = *peer_.core();
  const auto over = [&] { return reached() || core.failureCode() != Code::kOk; };
  PEERLANE_RETURN_IF_ERROR(core.progress().wait(over, timeout));
  return reached() ? Status::ok() : core.failure();
}

Result<Transfer> addSignal(const Peer& peer, uint32_t number, uint64_t value) {
  Notify what;
  what.signal = number;
  what.signalAdd = value;
  return notify(peer, what);
}

}  // namespace peerlane
