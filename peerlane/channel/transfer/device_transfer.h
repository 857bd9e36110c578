// SPDX-License-Identifier: Apache-2.0
//
// DeviceTransfer: the life of one put, get or notification that a GPU's stream carries out. The
// post enqueues the whole transfer; from then on the host only looks whether the stream has passed
// it. A transfer on a user's stream whose remote region is not imported yet is enqueued as well,
// after a wait for a word of host memory: when the import is there, the host says where the memory
// is and lets the stream go on. A transfer on no stream of the user's is enqueued when the import
// is there, as a deferred submission (deferred_submission.h). For both of these the host adds to
// the signals. Cancelling, or losing the peer, takes nothing off a stream: the transfer ends, with
// that status, when the stream has passed it, because only then nothing touches its memory any
// more. One thread at a time advances it: the poster, then turns.
#pragma once

#include <atomic>
#include <memory>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/operation/operation.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/program/device/deferred_submission.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/device/device_health.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class DeviceTransfer final : public Operation, public Task {
 public:
  DeviceTransfer(std::shared_ptr<PeerCore> peer, DeviceExecutor& executor, BlockProgram blocks,
                 OwnedNotify notify, const PostOptions& options);
  ~DeviceTransfer() override;

  // An error means that nothing was enqueued.
  static Status begin(const std::shared_ptr<DeviceTransfer>& transfer);

  Status wait(std::chrono::nanoseconds timeout) override;
  Turn turn() override;
  std::string describe() const override;

 private:
  enum class State : uint8_t {
    kImporting,  // a remote region is asked for; nothing is enqueued
    kLate,       // enqueued, and the stream waits for that region
    kRefused,    // it will not come: the stream goes on without a copy
    kRunning,    // enqueued, or a deferred submission
    kNotifying,  // the bytes are there; the host delivers the message
    kEnded,
  };

  Status enqueue();
  Status enqueueLate();
  Status submitDeferred();
  // With the notification that the stream delivers.
  Result<std::unique_ptr<DeviceProgram>> prepare(OwnedNotify byStream, bool isPostedNow);
  // The host adds to the signal, and not the stream.
  bool hostSignals() const { return isLate_ || deferred_ != nullptr; }
  void leaveGates();
  void refuseLate();
  bool passed();
  Status enterGates(bool slab);
  Status notifyByHost();
  bool advance();
  void end(const Status& status);
  Status outcome() const;

  const std::shared_ptr<PeerCore> peer_;
  DeviceExecutor& executor_;
  BlockProgram blocks_;
  OwnedNotify notify_;
  PostOptions options_;
  State state_ = State::kImporting;
  bool entered_ = false;
  bool slabEntered_ = false;
  bool watched_ = false;
  DevicePost post_;
  std::unique_ptr<DeferredSubmission> deferred_;  // in place of the post
  DeviceExecutor::LatePost late_;
  bool isLate_ = false;
  Status refusal_;
  Transfer message_;
  const Progress::Clock::time_point since_ = Progress::Clock::now();
  DeviceHealth health_;
};

// How long a waiting thread spins for the end of a post of so many bytes, as CUDA's own
// synchronisation does.
std::chrono::nanoseconds spinTimeFor(uint64_t bytes);

// Posts `blocks` (which may be empty where the notification says something) on a device of this
// context.
Result<Transfer> postOnDevice(const std::shared_ptr<PeerCore>& peer, DeviceExecutor& executor,
                              BlockProgram blocks, OwnedNotify notify, const PostOptions& options);

}  // namespace peerlane
