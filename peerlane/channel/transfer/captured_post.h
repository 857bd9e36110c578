// SPDX-License-Identifier: Apache-2.0
//
// CapturedPost: a put, get, notification or wait that was captured into a CUDA graph. It owns
// everything that the replays use (regions held in use, words, descriptors) until the graph and its
// executables are gone; the graph says so. It runs while the peer lives. When the peer is lost, or
// the caller cancels it, its end is told at once, and replays from then on do nothing. Advanced by
// turns.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/operation/operation.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class CapturedPost final : public Operation, public Task {
 public:
  CapturedPost(std::shared_ptr<PeerCore> peer, DeviceExecutor& executor, std::string what)
      : Operation(peer->progress()),
        peer_(std::move(peer)),
        executor_(executor),
        what_(std::move(what)) {}
  ~CapturedPost() override;

  // `blocks` may be empty where the notification says something. Errors: kNotPrepared for a remote
  // region that is not imported; else as DeviceExecutor::capture.
  static Result<Transfer> capture(const std::shared_ptr<PeerCore>& peer, DeviceExecutor& executor,
                                  BlockProgram blocks, OwnedNotify notify,
                                  const PostOptions& options);
  // A post of a plan, which `plan` keeps alive; regions are those of `blocks`.
  static Result<Transfer> capturePlan(const std::shared_ptr<PeerCore>& peer,
                                      DeviceExecutor& executor, std::shared_ptr<void> plan,
                                      const BlockProgram& blocks, bool addsToSignal,
                                      DeviceProgram& program, DeviceStream stream,
                                      const DeviceIndices& indices);
  // A wait for the counter line at `offset` of this side's slab.
  static Result<Transfer> captureWait(const std::shared_ptr<PeerCore>& peer,
                                      DeviceExecutor& executor, DeviceStream stream,
                                      uint64_t offset, uint64_t value, uint64_t perReplay,
                                      const std::string& what);

  Status wait(std::chrono::nanoseconds timeout) override;
  Turn turn() override;
  std::string describe() const override;

 private:
  Status borrow();
  Status enter(BlockProgram blocks, bool slab);
  Status captureMessage(OwnedNotify notify, DeviceStream stream);
  // Hands it to the graph, which keeps it, and to the progress engine, which looks after it.
  static Result<Transfer> keep(const std::shared_ptr<CapturedPost>& post, DeviceStream stream);
  Status endOfReplays() const;
  void stopReplays(const Status& why);
  void stopWaits();
  bool deliverMessages();
  bool owesMessages() const;
  void letGo();

  const std::shared_ptr<PeerCore> peer_;
  DeviceExecutor& executor_;
  const std::string what_;
  std::shared_ptr<void> plan_;
  BlockProgram blocks_;
  bool entered_ = false;
  bool slabEntered_ = false;
  bool waits_ = false;
  std::unique_ptr<DeviceProgram> program_;
  std::vector<std::unique_ptr<CapturedWork>> work_;
  std::atomic<uint64_t>* abort_ = nullptr;  // borrowed, as the next two
  std::atomic<uint64_t>* fault_ = nullptr;
  std::atomic<uint64_t>* bell_ = nullptr;
  OwnedNotify message_;
  uint64_t begun_ = 0;             // of what the bell has rung for
  std::deque<Transfer> underWay_;  // of these, until the peer has room; in order
  bool stopped_ = false;
  bool kept_ = false;
  // The graph's word to us: it and its executables are gone. Outlives this object.
  const std::shared_ptr<std::atomic<bool>> gone_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace peerlane
