// SPDX-License-Identifier: Apache-2.0
//
// The format of everything that the two ends of a message lane write to each other: the area that
// each side keeps for one peer, the envelope and the answer of a message, and the control messages
// (notes) of lanes. docs/wire.md has the same as a specification. Plain values; thread-safe: no
// state.
//
// A side copies everything that comes from the peer before it looks at it, and believes it only
// after a check: the peer may change its memory at any time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "peerlane/channel/protocol/protocols.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"

namespace peerlane {

enum class MessageKind : uint8_t {
  kEager = 1,  // the payload follows the envelope
  kGet = 2,    // the receiver copies from the place that the envelope names
  kPut = 3,    // the sender copies to the place that the answer names
  kRing = 4,   // through the receiver's ring of chunks
  kVoid = 5,   // cancelled before it was sent: the receive with its number ends with kCancelled
};

// A message in several pieces has an envelope for each piece, with the piece's index and their
// count. A message of one piece has 0 of 0.
struct Part {
  uint16_t index = 0;
  uint16_t count = 0;
  bool operator==(const Part&) const = default;
  bool canBe() const { return count == 0 ? index == 0 : index < count; }
  uint64_t pieces() const { return count == 0 ? 1 : count; }
};

// Follows the sequence word of an inbox slot. Byte map, little endian.
struct Envelope {
  MessageKind kind = MessageKind::kVoid;
  uint8_t mayStage = 0;  // 1: the ring may be used where the memory cannot be reached
  Access access = Access::kLocal;
  uint8_t ordinal = 0;  // messages before this one, of however many pieces, modulo 256
  Part part{};
  uint64_t bytes = 0;       // of the message
  uint64_t number = 0;      // of the message, from 0
  uint64_t allocation = 0;  // kGet: the region where the payload lies, and where in it
  uint64_t generation = 0;
  uint64_t regionBytes = 0;
  uint64_t offset = 0;
};
static_assert(sizeof(Envelope) == kEnvelopeBytes && offsetof(Envelope, part) == 4 &&
              offsetof(Envelope, bytes) == 8);

enum class Verdict : uint8_t {
  kAccepted = 1,  // eager, get: the receiver has it; put: it may be written to the named place
  kStaged = 2,    // goes through the named ring, from chunk `position` on
  kRefused = 3,   // nothing was or will be written: `code` says why
};

// Follows the sequence word of an answer slot. Byte map, little endian.
struct Answer {
  Verdict verdict = Verdict::kRefused;
  Code code = Code::kOk;
  Access access = Access::kLocal;
  uint8_t otherPieces = 0;  // 1, kSizeMismatch: there are more pieces at one side than at the other
  uint32_t chunkBytes = 0;
  uint64_t bytes = 0;       // that the receiver has room for
  uint64_t number = 0;      // of the message
  uint64_t allocation = 0;  // kPut: the buffer's region; staged: the ring's
  uint64_t generation = 0;
  uint64_t regionBytes = 0;
  uint64_t position = 0;  // kPut: offset of the buffer in its region; staged: first chunk
};
static_assert(sizeof(Answer) == kAnswerBytes && offsetof(Answer, bytes) == 8);

// The area that one side keeps for one peer, and that this peer alone writes. `eagerBytes`: room
// after each envelope.
//     0  u64  chunks the peer wrote into this side's ring
//    64  u64  chunks the peer took out of its own ring, which this side fills
//   128  answers to what this side sent, 64 bytes each
//  1152  done words of puts that this side receives, 64 bytes each
//  2176  inbox slots
struct LaneArea {
  static constexpr uint32_t kSlots = 16;
  static constexpr uint64_t kStagedDataOffset = 0;
  static constexpr uint64_t kStagedCreditOffset = 64;
  static constexpr uint64_t kAnswersOffset = 128;
  static constexpr uint64_t kDoneOffset = kAnswersOffset + uint64_t{kSlots} * kAnswerSlotBytes;
  static constexpr uint64_t kInboxOffset = kDoneOffset + uint64_t{kSlots} * kWordSlotBytes;
  static constexpr uint32_t kMaxEagerBytes = 4096;

  static constexpr uint32_t strideBytes(uint32_t eagerBytes) {
    return (kInboxPayloadOffset + eagerBytes + 63) / 64 * 64;
  }
  static constexpr uint64_t bytes(uint32_t eagerBytes) {
    return kInboxOffset + uint64_t{kSlots} * strideBytes(eagerBytes);
  }
};
static_assert(LaneArea::kInboxOffset == 2176 && LaneArea::bytes(LaneArea::kMaxEagerBytes) <= 70000,
              "address space per pair of ranks; memory only where it is used");

// Names a region of the peer, as an envelope, answer or note does.
struct RegionName {
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint64_t bytes = 0;
  Access access = Access::kLocal;
};

// A control message between the two ends of a lane (a note): the hello of the bootstrap, and events
// too rare to have a word.
struct LaneNote {
  enum class Kind : uint8_t {
    kHello = 1,     // the area, and which ranks these are
    kWithdraw = 2,  // the sender cancelled message `number`: refuse it unless it is under way
    kGaveUp = 3,  // message `number`, which the receiver had accepted, will not be written: `code`
    kBye = 4,     // this side has closed its lanes and touches nothing any more: `code`
    // Where the area for messages on streams is: in memory of a GPU, or, where both sides stage
    // them, that of lanes; allocation 0: there is none.
    kDeviceArea = 5,
    kDeviceRegion = 6,  // memory that messages on streams name: `area`
    kDeviceEnd = 7,     // messages on streams have ended: `code`
    kDeviceReady = 8,   // the device of this side reaches the region `area` of the other side's
    kDeviceWaits = 9,   // a message on a stream is not met: its `number`, region, and length
    kHeard = 10,  // the receiver knows that staged message `number` was given up: its chunks may go
                  // on, without bytes
  };
  Kind kind = Kind::kBye;
  Code code = Code::kOk;
  // Of a message (kDeviceWaits: bit 63: a send; bit 62: the region is being taken back);
  // kDeviceRegion and kDeviceReady: 1: it is read, not written. kHello: StagingOffer.
  uint64_t number = 0;
  // kHello; kDeviceArea to kDeviceWaits have `area` alone
  uint32_t rank = 0;       // of the side that sends the note
  uint32_t otherRank = 0;  // of the side that receives it
  uint32_t ranks = 0;
  uint32_t eagerBytes = 0;
  RegionName area{};

  // Messages on streams have their own ends (DeviceLane).
  bool isOfStreams() const;
  std::vector<std::byte> encode() const;
  // kCorrupt naming what is wrong.
  static Result<LaneNote> decode(std::span<const std::byte> bytes);
};

}  // namespace peerlane
