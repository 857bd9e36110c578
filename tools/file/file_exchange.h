// SPDX-License-Identifier: Apache-2.0
//
// The messages between the sender and the receiver of a file. Set-up and outcome are JSON in
// messages of the control connection; each piece of content is a put into one slot of the
// receiver's ring, with a notification that names it; the receiver gives a slot back by adding 1 to
// a signal. Parsing only: nothing here moves a byte.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/memory/region_reference.h"
#include "tools/memory/content_hash.h"

namespace peerlane {

inline constexpr uint32_t kFileChannel = 3;
// How long the other side's program may live (the library watches that) and do nothing: a disk that
// hangs, say.
inline constexpr auto kFileStall = std::chrono::minutes(10);
// Tags of notifications.
inline constexpr uint32_t kPieceTag = 1;
inline constexpr uint32_t kEndTag = 2;
inline constexpr uint32_t kAbortTag = 3;  // the message is the reason, as text
// Slots given back, at the sender.
inline constexpr uint32_t kSlotSignal = 0;
// Added to it when the receiver has ended: it wakes a sender that waits for a slot.
inline constexpr uint64_t kReceiverEnded = 1ull << 48;

// Sender to receiver, first.
struct FileOffer {
  std::string name{};  // as the sender has it; not to be trusted
  uint64_t bytes = 0;  // as it is before sending
  uint64_t slotBytes = 0;
  uint64_t slots = 0;

  std::vector<std::byte> encode() const;
  static Result<FileOffer> decode(std::span<const std::byte> message);
};

// Receiver to sender: where to put the pieces, or why not.
struct FileAnswer {
  Status refused{};
  bool tookAnother = false;  // refused, because another sender was first
  uint64_t slotBytes = 0;    // not more than offered
  uint64_t slots = 0;
  RegionReference::Encoded ring{};

  std::vector<std::byte> encode() const;
  static Result<FileAnswer> decode(std::span<const std::byte> message);
};

// Receiver to sender, last.
struct FileOutcome {
  Status status{};  // OK: the file stands under its name
  uint64_t bytes = 0;
  ContentHash::Value hash{};

  std::vector<std::byte> encode() const;
  static Result<FileOutcome> decode(std::span<const std::byte> message);
};

// In the notification of a piece, and (with the hash of everything) of the end.
struct FilePiece {
  uint64_t index = 0;  // of the piece; at the end: their number
  uint64_t bytes = 0;  // of the piece; at the end: of the whole content
  ContentHash::Value hash{};

  std::vector<std::byte> encode() const;
  static Result<FilePiece> decode(std::span<const std::byte> message);
};

}  // namespace peerlane
