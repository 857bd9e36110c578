// SPDX-License-Identifier: Apache-2.0
//
// Transfer: one posted operation, and put/get, which post one. Bytes go straight between the
// registered memory of this process and a peer's. Thread-safe.
//
//   auto transfer = peerlane::put(peer, blocks);          // posted, perhaps ended already
//   if (!transfer.isOk()) ...                             // refused: nothing moved
//   PEERLANE_RETURN_IF_ERROR(transfer->wait(timeout));    // ended: every byte is at the peer
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "peerlane/channel/blocks/blocks.h"
#include "peerlane/core/status.h"
#include "peerlane/program/device/device_stream.h"
#include "peerlane/session/peer/peer.h"

namespace peerlane {

class HostStream;
class Operation;

// The handle to a posted operation. Copies name the same operation. It goes on when all handles are
// gone.
class Transfer {
 public:
  Transfer() = default;
  // An operation that already ended.
  explicit Transfer(Status ended) : ended_(std::move(ended)) {}
  // For the library alone.
  explicit Transfer(std::shared_ptr<Operation> core) : core_(std::move(core)) {}

  // Whether it has ended, well or badly: nothing of this operation touches either side's memory any
  // more.
  bool done() const;
  // kTryAgain while it runs; then how it ended: OK (all bytes are at their place and, for a put,
  // visible to the peer), kCancelled, kPeerLost, kPeerSilent, ... After an error the destination's
  // bytes are undefined.
  Status status() const;
  // Blocks until it has ended; kTimeout leaves it running.
  Status wait(std::chrono::nanoseconds timeout) const;
  // Asks the operation to end early, and returns at once. Any thread may call it, in callbacks,
  // again, and after the end (then nothing happens). The operation has ended when done() says so,
  // once nothing touches either side's memory any more: with kCancelled (the destination's bytes
  // are undefined, and neither signal nor message is delivered), or as it would have without
  // cancel(), if everything had been sent before. How soon depends on the engine. Over tcp and the
  // ring a get of host memory ends at once: what the peer still sends is dropped, and the peer may
  // read its own memory until it has heard of it (unregistering it there waits). A put sends no
  // further frame and waits for the peer to take and answer those under way (at most 768 KiB more
  // leave). Staged
  // transfers begin no further group. Host streams stop within 8 MiB. Copies of a GPU that are on a
  // stream already are done to the end (and the post may still end as cancelled); those that are on
  // none are left out. On mapped memory and cma a put or get without a stream has ended when put()
  // or get() returns, if its regions were imported by then (RemoteRegion::prepare) and its message,
  // if it has one, found room at the peer. Otherwise it begins later, and cancel() ends it at once
  // until then. The end of a put, and of what is staged, waits for a silent peer: for its
  // answer or its own end.
  void cancel() const;
  // A descriptor that becomes readable when the transfer has ended; it is readable from the start
  // if the transfer has ended already. Each transfer has its own; read nothing from it. Lifetime:
  // as long as this handle, or a copy made after the call. An error means that the process has no
  // descriptors left.
  Result<int> fd() const;
  // Calls `fn` once the operation has ended, on the progress thread (or at once, if it has ended
  // already). All functions that were given are called, in that order and one after the other: one
  // that is given while an earlier one has not returned yet is called after it, by the thread that
  // calls that one. Of an operation that had ended before put() or get() returned, each is called
  // at once, whatever other threads do.
  void onEnd(std::function<void(const Status&)> fn) const;

 private:
  // The descriptor of an operation that had ended before put() or get() returned, and so left no
  // record: made when first asked for, and shared by copies made after that.
  class EndedDescriptor {
   public:
    EndedDescriptor() = default;
    EndedDescriptor(const EndedDescriptor& other) : shared_(other.hold()) {}
    EndedDescriptor(EndedDescriptor&& other) noexcept : shared_(other.release()) {}
    EndedDescriptor& operator=(EndedDescriptor other) noexcept {
      Shared* const mine = release();
      shared_.store(other.release(), std::memory_order_relaxed);
      other.shared_.store(mine, std::memory_order_relaxed);
      return *this;
    }
    ~EndedDescriptor() {
      if (Shared* const shared = shared_.load(std::memory_order_relaxed)) [[unlikely]]
        drop(shared);
    }
    Result<int> get() const;

   private:
    struct Shared;
    Shared* hold() const {
      Shared* const shared = shared_.load(std::memory_order_acquire);
      return shared == nullptr ? nullptr : holdMore(shared);
    }
    Shared* release() {
      Shared* const shared = shared_.load(std::memory_order_relaxed);
      shared_.store(nullptr, std::memory_order_relaxed);
      return shared;
    }
    static Shared* holdMore(Shared* shared);
    static void drop(Shared* shared);
    mutable std::atomic<Shared*> shared_{nullptr};  // release by the first get(); acquire by copies
  };

  std::shared_ptr<Operation> core_;
  Status ended_;
  EndedDescriptor endedFd_;  // where there is no core_
};

// Posts a put (local to remote) or get (remote to local) of all blocks. Where their regions are
// imported (RemoteRegion::prepare), the calling thread copies before it returns on links that map
// memory or use cma; on others the progress thread does the rest. The call never waits for the
// peer: it asks for regions that are not imported yet, returns, and the progress thread, or one
// that waits, begins the transfer when the answer is there. Blocks of one call must not overlap at
// their destination. Errors, before anything moves: kInvalidArgument (empty list, 0 bytes, out of
// range, overlap), kPermissionDenied (rights of a region), kClosed (unregistered), kPeerLost,
// kPeerSilent, kNotSupported (blocks of another peer). Order: transfers are unordered among each
// other. The notification of a put announces the put's own bytes and those of transfers that had
// ended before it was posted.
Result<Transfer> put(const Peer& peer, std::span<const Block> blocks,
                     const PostOptions& options = {});
Result<Transfer> get(const Peer& peer, std::span<const Block> blocks,
                     const PostOptions& options = {});
Result<Transfer> put(const Peer& peer, const StridedBlocks& blocks,
                     const PostOptions& options = {});
Result<Transfer> get(const Peer& peer, const StridedBlocks& blocks,
                     const PostOptions& options = {});
// A notification without bytes.
Result<Transfer> notify(const Peer& peer, const Notify& what, HostStream* stream = nullptr);
// The same, after everything that was enqueued on a GPU's stream before.
Result<Transfer> notify(const Peer& peer, const Notify& what, DeviceStream stream);

// Returns when every put, get and plan posted to the peer has ended, so that all puts are visible
// there. Posts made meanwhile prolong it. Their transfers say how they ended.
Status flush(const Peer& peer, std::chrono::nanoseconds timeout = std::chrono::seconds(30));

}  // namespace peerlane
