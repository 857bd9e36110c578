// SPDX-License-Identifier: Apache-2.0
//
// DeviceWait: a stream of a GPU that waits for a signal of a peer. The kernel that waits looks at
// an abort word of host memory now and then; the host stores there when the peer is gone, the time
// is over, or the wait is cancelled, and the stream goes on. Advanced by turns.
#pragma once

#include <atomic>
#include <memory>

#include "peerlane/channel/operation/operation.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class DeviceWait final : public Operation, public Task {
 public:
  DeviceWait(std::shared_ptr<PeerCore> peer, DeviceExecutor& executor, uint64_t offset,
             uint64_t value, std::string what)
      : Operation(peer->progress()),
        peer_(std::move(peer)),
        executor_(executor),
        offset_(offset),
        value_(value),
        what_(std::move(what)) {}
  ~DeviceWait() override;

  // Holds `stream` until the counter `line` (in this side's slab, at `offset`) reaches `value`. On
  // a stream that is being captured: as CapturedPost::captureWait.
  static Result<Transfer> begin(const std::shared_ptr<PeerCore>& peer, DeviceStream stream,
                                uint64_t offset, uint64_t value, std::string what,
                                std::chrono::nanoseconds timeout, uint64_t perReplay = 1);

  Turn turn() override;
  std::string describe() const override;

 private:
  void release(Status why);
  bool reached() const;

  const std::shared_ptr<PeerCore> peer_;
  DeviceExecutor& executor_;
  const uint64_t offset_;
  const uint64_t value_;
  const std::string what_;
  DevicePost post_;
  std::atomic<uint64_t>* abort_ = nullptr;
  Status released_;  // why the stream was let go early
  Progress::Clock::time_point deadline_;
  const Progress::Clock::time_point since_ = Progress::Clock::now();
};

}  // namespace peerlane
