// SPDX-License-Identifier: Apache-2.0
//
// FramePipe: a stream of bytes in both directions that never blocks. Knows nothing of frames.
//
// The bytes lie in memory of the library or of its program. The program may take its memory away at
// any time, or another one cut the file behind it: a pipe touches it only by means that survive
// that (os/mappings/nofault_copy.h, system calls).
//
// Threads: writable(), write(), hasUnsent(), lent() and returned() may be called by any thread, one
// at a time (the agent's lock); readable(), read(), hasUnread(), refresh() and close() by the
// thread that polls the link. The two groups may run at once, except close(): no other call may run
// beside it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "peerlane/core/status.h"
#include "peerlane/os/io_slice.h"

namespace peerlane {

struct PipeSlices {
  std::span<const IoSlice> slices;
  // Slices that begin here are memory of the library, which stays; any other may be the program's,
  // and has 1 byte or more.
  std::span<const std::byte> ours{};
  bool areAllOurs = false;

  bool isOurs(const IoSlice& slice) const {
    const auto* const base = static_cast<const std::byte*>(slice.base);
    return areAllOurs || (base >= ours.data() && base < ours.data() + ours.size());
  }
  bool areOurs() const {
    return std::ranges::all_of(slices, [this](const IoSlice& slice) { return isOurs(slice); });
  }
};

class FramePipe {
 public:
  virtual ~FramePipe() = default;

  // False when a write would certainly take nothing: not connected yet, or full when last tried.
  virtual bool writable() = 0;
  // Takes a prefix of the slices and returns its bytes; 0 when no byte fits now. At most
  // kMaxIoSlices. Errors: kRevoked: the memory of the first slice cannot be read, in part, and
  // nothing was taken; the pipe goes on. All others are sticky: kPeerLost (the other end is gone),
  // kCorrupt, kSystem, ...
  virtual Result<size_t> write(const PipeSlices& from) = 0;

  // Bytes that write() took lie in the pipe itself, because they found no room: the next write()
  // sends them first, and may be one of no slices. Never beside writable(), but for a change of
  // that since the last write().
  virtual bool hasUnsent() const { return false; }

  // A pipe may still read memory that write() took, until the peer has: bytes ever taken so, and
  // how many of them it reads no more. Memory whose bytes went while lent() was n is free when
  // returned() is n or more. Threads as for write(). A look at returned() that finds too few has
  // the peer wake this side when there are more.
  virtual uint64_t lent() const { return 0; }
  virtual uint64_t returned() { return 0; }

  // False when a read would certainly find neither bytes nor an error.
  virtual bool readable() = 0;
  // Fills a prefix of the slices and returns its bytes; 0 when no byte has arrived. Errors as
  // above, but kRevoked: memory of one of the slices that are not ours cannot be written, and no
  // byte was taken from the stream; some may have been copied. The orderly end of the stream is
  // kPeerLost, after every byte that came before it.
  virtual Result<size_t> read(const PipeSlices& to) = 0;
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
