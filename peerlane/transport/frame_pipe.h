// SPDX-License-Identifier: Apache-2.0
//
// FramePipe: a stream of bytes in both directions that never blocks. Knows nothing of frames.
//
// Threads: writable(), write() and hasUnsent() may be called by any thread, one at a time (the
// agent's lock); readable(), read(), hasUnread(), refresh() and close() by the thread that polls
// the link. The two groups may run at once, except close(): no other call may run beside it.
#pragma once

#include <cstddef>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/os/io_slice.h"

namespace peerlane {

class FramePipe {
 public:
  virtual ~FramePipe() = default;

  // False when a write would certainly take nothing: not connected yet, or full when last tried.
  virtual bool writable() = 0;
  // Takes a prefix of `slices` and returns its bytes; 0 when no byte fits now. At most
  // kMaxIoSlices. Errors are sticky: kPeerLost (the other end is gone), kCorrupt, kSystem, ...
  virtual Result<size_t> write(std::span<const IoSlice> slices) = 0;

  // Bytes that write() took lie in the pipe itself, because they found no room: the next write()
  // sends them first, and may be one of no slices. Never beside writable(), but for a change of
  // that since the last write().
  virtual bool hasUnsent() const { return false; }

  // False when a read would certainly find neither bytes nor an error.
  virtual bool readable() = 0;
  // Fills a prefix of `slices` and returns its bytes; 0 when no byte has arrived. Errors as above;
  // the orderly end of the stream is kPeerLost, after every byte that came before it.
  virtual Result<size_t> read(std::span<const IoSlice> slices) = 0;
  // Bytes, or an error, that came lie in the pipe itself: no wake-up will tell of them.
  virtual bool hasUnread() const { return false; }

  // To be called at the end of every poll: asks for a wake-up once the pipe can do what the last
  // calls could not. The code that drives the link must poll again after such a wake-up.
  virtual void refresh() = 0;

  // A small answer may wait for the next message in the other direction: a thread that waits will
  // poll again soon, or setOwing(true) has somebody poll soon after it has stopped to wait.
  virtual bool mayOwe() const { return false; }
  virtual void setOwing(bool /*owes*/) {}

  // Ends the stream; the other side sees its end. No call but destruction follows.
  virtual void close() = 0;
};

}  // namespace peerlane
