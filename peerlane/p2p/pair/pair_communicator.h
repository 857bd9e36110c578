// SPDX-License-Identifier: Apache-2.0
//
// PairCommunicator: the object of a P2PComm: one connection of its own to another process. It
// assembles the parts that work on that connection (bootstrap, segments of the other side, copies,
// messages), and reports errors, silence and route of the whole. Thread-safe. Owner:
// CommunicatorTable, and each call while it lasts.
#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/p2p/pair/local_memory.h"
#include "peerlane/p2p/pair/pair_bootstrap.h"
#include "peerlane/p2p/pair/pair_copies.h"
#include "peerlane/p2p/pair/pair_messages.h"
#include "peerlane/p2p/pair/pair_note_channel.h"
#include "peerlane/p2p/pair/pair_options.h"
#include "peerlane/p2p/pair/remote_segment_cache.h"
#include "peerlane/p2p/segment/imported_segments.h"
#include "peerlane/p2p/segment/segment_registry.h"
#include "peerlane/p2p/stream/operation_stream.h"

namespace peerlane::p2p {

// This side's end of a connection that was made by a root.
struct PairEnd {
  std::shared_ptr<Context> context;
  Peer peer;
  bool isRoot = false;  // this process made the root; it is rank 0
};

class PairCommunicator final : public std::enable_shared_from_this<PairCommunicator> {
 public:
  using Duration = std::chrono::nanoseconds;

  // Both sides call it on their ends of one connection. `segments` and `imports` are those of this
  // process and outlive it. Errors: kInvalidArgument (the two sides do not go together),
  // kNotSupported (the link), kTimeout, kPeerLost, kTryAgain (the other side gave up waiting before
  // this one came).
  static Result<std::shared_ptr<PairCommunicator>> create(PairEnd end, const PairOptions& options,
                                                          SegmentRegistry& segments,
                                                          ImportedSegments& imports);
  ~PairCommunicator();

  bool hasGpu() const { return options_.gpu.has_value(); }
  const std::shared_ptr<Context>& context() const { return end_.context; }
  // The process at the other side.
  const ProcessToken& other() const { return other_; }
  // The host stream of calls that name none. It is made by the first call that needs it.
  Result<std::shared_ptr<HostQueue>> ownQueue();

  Status send(std::span<const LocalPiece> pieces, const OperationStream& stream);
  Status recv(std::span<const LocalPiece> pieces, const OperationStream& stream);
  Answer copy(Direction direction, std::span<const CopyPiece> pieces,
              const OperationStream& stream) {
    return copies_->copy(direction, pieces, stream);
  }

  // The segments of the other side and how they are reached.
  RemoteSegmentCache& remoteSegments() { return remoteSegments_; }

  // The progress thread holds it no more after this, so that it does not end there.
  void leave();
  // Ends everything under way, and the connection. Later posts are refused.
  void interrupt();

  // The first error of the transfers that were posted, or of the connection.
  Status asyncError();
  Status synchronize(Duration timeout);
  // Seconds since the other side was last heard of; -1 when it is lost.
  int silence() const;
  std::string route() const;

 private:
  PairCommunicator(PairEnd end, const PairOptions& options, SegmentRegistry& segments,
                   ImportedSegments& imports);
  Status meet();
  Status makeMessages(Progress::Clock::time_point deadline);
  Status post(MessageRole role, std::span<const LocalPiece> pieces, const OperationStream& stream);
  void onNote(Result<PairNote> note);
  void onAsk(const PairNote& note);

  const PairEnd end_;
  const ContextId self_;  // of end_.context
  const PairOptions options_;
  SegmentRegistry& segments_;
  ImportedSegments& imports_;
  PendingTransfers pending_;
  PairNoteChannel notes_;
  PairBootstrap bootstrap_;
  RemoteSegmentCache remoteSegments_;
  LocalMemory memory_;
  // Made by create() and constant afterwards, as the next two.
  ProcessToken other_{};
  std::unique_ptr<PairCopies> copies_;
  std::unique_ptr<PairMessages> messages_;  // null: one side wants no messages
  Mutex queueMutex_;
  std::shared_ptr<HostQueue> queue_ PEERLANE_GUARDED_BY(queueMutex_);
};

}  // namespace peerlane::p2p
