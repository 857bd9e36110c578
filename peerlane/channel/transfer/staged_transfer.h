// SPDX-License-Identifier: Apache-2.0
//
// StagedTransfer: the life of one put or get between memories that cannot reach each other. Its
// bytes go in groups through staging memory of this side, of the peer, or of both, by up to three
// steps:
//
//   put  a GPU of this side copies into staging | any link moves | a GPU of the peer copies out
//   get  the same from right to left
//
// A step is left out where its GPU has no part. Slower than a straight copy; the log and the route
// say so, and PEERLANE_STRICT refuses it.
//
// On a user's stream the post enqueues everything: the stream waits, by a word that the CPU stores,
// for the slot of each group, and at the end for the whole. Whatever happens, the stream comes to
// that end. Only then has the transfer ended, and the next transfer gets the staging memory.
// Advanced by turns.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/blocks/block_program.h"
#include "peerlane/channel/operation/operation.h"
#include "peerlane/channel/staging/peer_staging.h"
#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/program/device/deferred_submission.h"
#include "peerlane/program/device/device_executor.h"
#include "peerlane/program/device/device_health.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {

class StagedTransfer final : public Operation, public Task {
 public:
  using Piece = BlockPiece;

  // `why`: the reason for staging. `localIndex` and `remoteIndex`: of indexed blocks, checked.
  // Errors: kNotSupported (PEERLANE_STRICT, a stream being captured, no staging memory), and as
  // put().
  static Result<Transfer> post(const std::shared_ptr<PeerCore>& peer, BlockProgram blocks,
                               OwnedNotify notify, const PostOptions& options,
                               const std::string& why, std::span<const uint32_t> localIndex = {},
                               std::span<const uint32_t> remoteIndex = {});

  // kNotSupported under PEERLANE_STRICT, with `why`.
  static Status allowed(const PeerCore& peer, const std::string& why);

  StagedTransfer(std::shared_ptr<PeerCore> peer, BlockProgram blocks, OwnedNotify notify,
                 const PostOptions& options);
  ~StagedTransfer() override;

  Turn turn() override;
  std::string describe() const override;

 private:
  enum class State : uint8_t {
    kReaching,   // its stream has not come to it
    kQueued,     // other transfers have the staging memory
    kMoving,     // groups are under way
    kPassing,    // the stream has yet to pass its end
    kNotifying,  // the bytes are there; the host delivers signal and message
    kEnded,
  };
  enum class Step : uint8_t { kLocal, kWire, kRemote };
  // A request to the peer for its step, and the answer.
  struct RemoteMove {
    std::atomic<bool> ended{false};  // release after the status
    Status status;
  };
  struct Group {
    std::vector<Piece> pieces;
    uint64_t bytes = 0;
    std::shared_ptr<DeviceProgram> program;        // of the local step
    DevicePost post;                               // on the user's stream
    std::unique_ptr<DeferredSubmission> deferred;  // where there is none
    Transfer wire;
    std::shared_ptr<RemoteMove> move;
    size_t step = 0;  // of steps_
    bool busy = false;
  };

  bool isPut() const { return blocks_.direction() == Direction::kPut; }
  bool localIsDevice() const {
    return steps_.front() == Step::kLocal || steps_.back() == Step::kLocal;
  }
  bool onStream() const { return word_ != nullptr; }
  PeerStaging::Half half() const {
    return options_.deviceStream ? PeerStaging::Half::kOnStreams : PeerStaging::Half::kWithout;
  }
  uint64_t offsetOf(size_t group) const { return peerStaging_->offsetOf(half(), group); }

  Status prepare(std::span<const uint32_t> localIndex, std::span<const uint32_t> remoteIndex);
  Status chooseSteps();
  void cut(const std::vector<Piece>& pieces);
  Status prepareLocalSteps();
  Status enqueue();

  bool advance();
  bool advanceMoving();
  bool advanceGroup(size_t index);
  bool stepEnded(Group& group, Status& status);
  bool start(size_t index);
  Status startWire(size_t index);
  void startRemote(size_t index);
  bool remoteReady();
  void grant();
  void fail(const Status& status);
  Status stopReason() const;
  bool deviceFailed();
  void end(const Status& status);
  Counter* poisoningsOfWait() const;

  const std::shared_ptr<PeerCore> peer_;
  BlockProgram blocks_;
  OwnedNotify notify_;
  PostOptions options_;
  DeviceExecutor* executor_ = nullptr;  // of the local memory, or of the stream
  std::shared_ptr<PeerStaging> peerStaging_;
  std::shared_ptr<StagingMemory> memory_;  // where there is a local step
  std::vector<Step> steps_;
  std::vector<Group> groups_;
  RemoteRegion remoteStaging_;  // where there is a remote step

  std::atomic<uint64_t>* word_ = nullptr;  // the user's stream waits for it
  DevicePost reached_;
  DevicePost passed_;
  bool isOnStream_ = false;  // something of it is

  State state_ = State::kReaching;
  bool entered_ = false;
  bool watched_ = false;
  bool queued_ = false;
  size_t done_ = 0;     // groups, from the first on
  size_t fetched_ = 0;  // get: groups whose bytes are here, from the first on
  Status failure_;      // the first
  Transfer message_;
  const Progress::Clock::time_point since_ = Progress::Clock::now();
  DeviceHealth health_;
};

}  // namespace peerlane
