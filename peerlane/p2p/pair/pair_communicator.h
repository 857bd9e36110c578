// SPDX-License-Identifier: Apache-2.0
//
// PairCommunicator: what a P2PComm is: one connection of its own to the other process, a
// communicator of two ranks on it, and the memory of the other side that is known there.
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/channel/transfer/plan.h"
#include "peerlane/os/adopted_mapping.h"
#include "peerlane/p2p/pair/pair_note.h"
#include "peerlane/p2p/segment/segment_book.h"
#include "peerlane/p2p/stream/operation_stream.h"
#include "peerlane/p2p/stream/pending_transfers.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane::p2p {

struct LocalPiece {
  std::byte* address = nullptr;
  uint64_t bytes = 0;
};
struct CopyPiece {
  std::byte* local = nullptr;
  uint64_t remote = 0;  // an address in the other process
  uint64_t bytes = 0;
};

struct PairOptions {
  P2pKind kind = P2P_BIDIRECTIONAL;
  P2pLink link = P2P_LINK_AUTO;
  bool sends = true;
  std::chrono::nanoseconds timeout{};
  std::optional<int> gpu{};
  std::optional<uint64_t> stagingBytes{};
};

class PairCommunicator final : public std::enable_shared_from_this<PairCommunicator> {
 public:
  using Duration = std::chrono::nanoseconds;

  // Both sides call it on their ends of one connection. `book` outlives it. Errors:
  // kInvalidArgument (the two do not go together), kNotSupported (the link), kTimeout, kPeerLost,
  // kTryAgain (the other side's patience had ended before this one came).
  static Result<std::shared_ptr<PairCommunicator>> create(std::shared_ptr<Context> context,
                                                          Peer peer, bool isRoot,
                                                          const PairOptions& options,
                                                          const ProcessToken& process,
                                                          SegmentBook& book);
  ~PairCommunicator();

  bool hasGpu() const { return options_.gpu.has_value(); }
  const std::shared_ptr<Context>& context() const { return context_; }
  // Which process is at the other side.
  const ProcessToken& other() const { return other_; }
  // For streams that the caller does not name. Made when first asked for.
  Result<std::shared_ptr<HostQueue>> ownQueue();

  Status send(std::span<const LocalPiece> pieces, const OperationStream& stream);
  Status recv(std::span<const LocalPiece> pieces, const OperationStream& stream);
  Answer copy(Direction direction, std::span<const CopyPiece> pieces,
              const OperationStream& stream);

  // Has the other side say how the segment is reached, so that no copy waits for that.
  void ask(const SegmentName& name);
  void forget(const SegmentName& name);

  // The progress thread holds it no more, so that it does not end there.
  void leave();
  // Ends everything under way, and the connection; posts are refused from now on.
  void interrupt();

  // The first error of what was posted, or of the connection.
  Status asyncError();
  Status synchronize(Duration timeout);
  // Seconds since the other side was last heard of; -1 when it is lost.
  int silence() const;
  std::string route() const;

 private:
  struct Attached {
    std::optional<Result<RemoteRegion>> remote;  // nothing while the answer is awaited
    bool wasAsked = false;
  };
  // A segment of the other side, and how it is reached.
  struct Remote {
    uint64_t address = 0;
    uint64_t bytes = 0;
    RemoteRegion region;
    bool holds(const CopyPiece& piece) const {
      return piece.remote >= address && piece.remote - address <= bytes &&
             piece.bytes <= bytes - (piece.remote - address);
    }
  };
  PairCommunicator(std::shared_ptr<Context> context, Peer peer, bool isRoot,
                   const PairOptions& options, SegmentBook& book);
  Status meet(const ProcessToken& process);
  Status checkOther(const PairNote& other) const;
  Status checkLink() const;
  void onNote(const std::vector<std::byte>& bytes);
  void onAsk(const PairNote& note);
  void onTell(const PairNote& note);
  Status say(const PairNote& note);

  Status post(bool isSend, std::span<const LocalPiece> pieces, const OperationStream& stream);
  Status postOnQueue(bool isSend, std::span<const LocalPiece> pieces,
                     const OperationStream& stream);
  Result<Transfer> postOnHost(bool isSend, std::span<const LocalPiece> pieces,
                              const OperationStream& stream);
  Result<Transfer> postOnDevice(bool isSend, std::span<const MessageBlock> blocks,
                                const OperationStream& stream);
  Result<Region> localRegion(const LocalPiece& piece, Access access, bool onDevice);
  Answer remoteRegion(const SegmentName& name, RemoteRegion& found);
  Answer findRemote(const CopyPiece& piece, Access access, Remote& found);
  Result<Transfer> copyBlocks(Direction direction, std::span<const Block> blocks,
                              const OperationStream& stream);
  void posted(const Transfer& transfer, const OperationStream& stream, PostName name);
  bool isWithin(const Region& region, const LocalPiece& piece) const;
  Status checkOnHost(const LocalPiece& piece, bool isSend);
  Status checkTouch(const LocalPiece& piece, Touch touch);
  Result<Region> copyRegion(const LocalPiece& piece, Direction direction, bool onDevice);

  const std::shared_ptr<Context> context_;
  const Peer peer_;
  const ContextId self_;  // of context_
  const bool isRoot_;
  const PairOptions options_;
  SegmentBook& book_;
  std::unique_ptr<Communicator> communicator_;  // null: messages are not wanted
  ProcessToken other_{};                        // constant once they have met

  PendingTransfers pending_;
  std::atomic<uint64_t> sends_{0}, receives_{0}, puts_{0}, gets_{0};  // calls, for their names
  // Memory of host messages that was found to be there: hashes of what was asked, so that memory in
  // use over and over is looked at once.
  std::array<std::atomic<uint64_t>, 64> checked_{};
  // Held while a post is made: one of several parts is not mixed with another's.
  std::mutex sendMutex_, recvMutex_;
  std::mutex mutex_;
  std::optional<Result<PairNote>> hello_;  // the other's; under mutex_, as all below
  std::atomic<bool> hasHello_{false};      // of hello_, for waiting without the lock
  std::atomic<bool> otherGaveUp_{false};
  std::map<uint64_t, Attached> attached_;  // by number
  std::shared_ptr<HostQueue> queue_;
};

}  // namespace peerlane::p2p
