// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/signal/signal.h"

#include "peerlane/channel/signal/device_wait.h"
#include "peerlane/channel/signal/signal_watch.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

struct Signal::Watched {
  Watched(const std::shared_ptr<PeerCore>& peer, const std::byte* word)
      : watch(std::make_shared<SignalWatch>(peer, word)) {}
  ~Watched() {
    if (!isForked()) watch->abandon();
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;
  // Its lock may be held for ever by a thread that is not here.
  bool isForked() const { return forkGeneration() != forks; }

  const std::shared_ptr<SignalWatch> watch;
  const uint64_t forks = forkGeneration();
};

Signal::Signal(Peer peer, const std::byte* word)
    : peer_(std::move(peer)),
      word_(word),
      watched_(std::make_shared<Watched>(peer_.core(), word)) {}

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

// A caller that looks in a loop is as good as one that waits: its peer need not ring.
uint64_t Signal::value() const {
  peer_.core()->progress().looked();
  return word();
}

uint64_t Signal::word() const {
  return signalValue(*peer_.core(), word_);
}

Result<int> Signal::fd(uint64_t value) const {
  if (watched_->isForked()) return peer_.core()->usable();
  return watched_->watch->fd(value);
}

Status Signal::wait(uint64_t value, std::chrono::nanoseconds timeout) const {
  const auto reached = [&] { return word() >= value; };
  if (reached()) return Status::ok();
  PeerCore& core = *peer_.core();
  const auto over = [&] { return reached() || core.failureCode() != Code::kOk; };
  // A store of a device wakes nobody: while this thread sleeps, the progress thread looks.
  const bool byDevice = core.links().devicesAdd();
  if (byDevice) core.progress().expectDeviceStores();
  const auto words = [&] {
    const auto offset = static_cast<uint64_t>(word_ - core.slab());
    const uint64_t number = (offset - slab::kSignalsOffset) / slab::kWordStrideBytes;
    return "signal " + std::to_string(number) + " of " + core.name() + " to reach " +
           std::to_string(value) + "; it is " + std::to_string(word());
  };
  const Status waited = core.progress().wait(over, timeout, words);
  if (byDevice) core.progress().deviceStoresSeen();
  PEERLANE_RETURN_IF_ERROR(waited);
  return reached() ? Status::ok() : core.failure();
}

Result<Transfer> Signal::waitOn(DeviceStream stream, uint64_t value,
                                std::chrono::nanoseconds timeout, uint64_t perReplay) const {
  if (!stream)
    return Status(Code::kInvalidArgument, "Signal::waitOn needs a stream (DeviceStream::cuda)");
  const auto offset = static_cast<uint64_t>(word_ - peer_.core()->slab());
  const uint64_t number = (offset - slab::kSignalsOffset) / slab::kWordStrideBytes;
  return DeviceWait::begin(peer_.core(), stream, offset, value,
                           "signal " + std::to_string(number) + " >= " + std::to_string(value),
                           timeout, perReplay);
}

Result<Transfer> addSignal(const Peer& peer, uint32_t number, uint64_t value) {
  Notify what;
  what.signal = number;
  what.signalAdd = value;
  return notify(peer, what);
}

}  // namespace peerlane
