// SPDX-License-Identifier: Apache-2.0
//
// FrameReceiver: the incoming half of a frame agent. Reads frames, performs the peer's entries on
// this side's regions, and puts the bytes this side asked for where they belong. Trusts no number:
// a frame that the format or the protocol forbids ends the link; an access that the regions forbid
// is refused with their code, and the link goes on. External synchronization required (one poll at
// a time); it touches the state that it shares with senders under their lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/region_directory.h"
#include "peerlane/transport/frame_format.h"
#include "peerlane/transport/frame_pipe.h"
#include "peerlane/transport/frame_places.h"
#include "peerlane/transport/frame_sender.h"

namespace peerlane {

class FrameReceiver {
 public:
  // `lock` guards `sender`. All three outlive the receiver.
  FrameReceiver(RegionDirectory& regions, Mutex& lock, FrameSender& sender, FrameFeatures peerKnows)
      : regions_(regions), lock_(lock), sender_(sender), peerKnows_(peerKnows) {}

  // Reads at most about `budget` bytes, and all that lies in the pipe; `moved` tells how many, also
  // after an error. Errors: the pipe's, and kCorrupt for frames that a correct peer never sends.
  // After an error only reset() follows.
  Status pump(FramePipe& pipe, size_t budget, FrameEffects& effects, size_t& moved);

  // Ends gets that were abandoned, and drops the rest of a payload of one.
  void letGo(FrameEffects& effects);
  // Drops a half-received payload and its pin.
  void reset(FrameEffects& effects);

 private:
  // Bytes read ahead: many small frames come with one read. Payloads larger than this mostly go
  // straight to their place.
  static constexpr size_t kReadAhead = 16 * 1024;
  // A payload of so many bytes is dearer to copy than to ask for alone.
  static constexpr size_t kLeastAlone = 1024;

  size_t buffered() const { return end_ - begin_; }
  Status useBuffered(FrameEffects& effects);
  size_t aheadBytes();
  Result<size_t> readMore(FramePipe& pipe, FrameEffects& effects);
  void dropPlaces(FrameEffects& effects);
  Status beginFrame(const Frame& frame, FrameEffects& effects);
  Status endPayload(FrameEffects& effects);
  Status endTrailer();
  void spoil(Code code);
  Code toldAs(Code code) const;
  Status beginPut(const Frame& frame, FrameEffects& effects);
  void beginBlocks(std::span<const FrameBlock> blocks, FrameEffects& effects);
  Status endTable(FrameEffects& effects);
  void beginPayload(const Frame& frame);
  Status beginEntry(const Frame& frame);
  Status endEntry();
  Status performWord(const Frame& frame, FrameEffects& effects);
  Status beginRequest(const Frame& frame, FrameEffects& effects);
  Status serveRequest(const Frame& frame, std::span<const FrameBlock> blocks,
                      FrameEffects& effects);
  Result<PinnedMemory> pin(const Frame& frame, std::span<const FrameBlock> blocks, Access wanted,
                           FrameEffects& effects);
  Status cancelRequests(const Frame& frame);
  Result<PinnedMemory> pin(const Frame& frame, uint64_t bytes, Access wanted,
                           FrameEffects& effects);

  RegionDirectory& regions_;
  Mutex& lock_;
  FrameSender& sender_ PEERLANE_GUARDED_BY(lock_);
  const FrameFeatures peerKnows_;

  Frame frame_;  // whose payload is being received
  bool inPayload_ = false;
  bool inTable_ = false;  // at its beginning, before the table of a list
  uint32_t payloadLeft_ = 0;
  // Empty: dropped (refused, a get that was abandoned, or memory that is gone).
  FramePlaces places_;
  bool pinned_ = false;  // frame_.allocation, for this payload

  bool entryOpen_ = false;      // a put whose last frame has not come
  uint64_t entry_ = 0;          // the open entry, or the last one
  Code entryCode_ = Code::kOk;  // its first refusal
  // The last entries that were refused, for words that depend on one.
  std::deque<std::pair<uint64_t, Code>> refused_;
  uint64_t request_ = 0;  // the last get request

  std::array<std::byte, kReadAhead> buffer_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace peerlane
