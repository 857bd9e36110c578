// SPDX-License-Identifier: Apache-2.0
//
// The messages that two sessions exchange over the secure channel, as plain values. The bytes
// (FlatBuffers, schema in control.fbs, specified in docs/wire.md) stay inside the source file.
// Decoding trusts nothing: structure, lengths and counts are checked before a value is made. No
// state, no I/O. Thread-safe: functions of their arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "peerlane/core/limits.h"
#include "peerlane/core/status.h"

namespace peerlane {
namespace control {

inline constexpr size_t kMaxTextBytes = 1024;  // every string
inline constexpr size_t kMaxBlobBytes = 4096;  // every other byte vector
static_assert(kMaxBlobBytes == limits::kMessageBytes);
inline constexpr size_t kMaxPartBytes = 4608;     // the link's own part of a grant
inline constexpr size_t kMaxWordsBytes = 1024;    // of one LinkMessage
inline constexpr size_t kMaxLinks = 16;           // offers, and refused alternatives
inline constexpr size_t kMaxPieces = 512;         // of one StagedMove
inline constexpr uint32_t kMaxDescriptors = 253;  // what one SCM_RIGHTS message can carry

// The sender's offer of one transport. Its descriptors travel with the stream where that is a Unix
// socket.
struct LinkOffer {
  std::string transport;        // its name, e.g. "shm"
  std::vector<std::byte> blob;  // read by the same transport of the other side only
  uint32_t fdCount = 0;         // descriptors that belong to this offer, in order
  friend bool operator==(const LinkOffer&, const LinkOffer&) = default;
};

// First message of each side, best link first.
struct Offers {
  std::vector<LinkOffer> links;
  // Set by the acceptor: it has further offers, which cost something to make, for an initiator that
  // can use none of these and answers with an Accepted without names.
  bool more = false;
  bool devices = false;  // the sender has devices, which may add to counters
  friend bool operator==(const Offers&, const Offers&) = default;
};

// Why one alternative was not taken, in words for a route report.
struct Refusal {
  std::string transport;
  std::string reason;
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

// The links that the sender has made, best first: the initiator chooses among those that both
// offered, and the acceptor answers with those that it has made, too. Without names: the initiator
// asks for the acceptor's further offers.
struct Accepted {
  std::vector<std::string> links;
  std::vector<Refusal> refused;
  friend bool operator==(const Accepted&, const Accepted&) = default;
};

// The sender's half of the link is up.
struct Ready {
  friend bool operator==(const Ready&, const Ready&) = default;
};

// A heartbeat, or the answer to one, which repeats its sequence.
struct Heartbeat {
  uint64_t sequence = 0;
  bool reply = false;
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

// The goodbye: the sender closes on purpose, and this is its last message. kOk: it closes without
// an error.
struct Bye {
  Code code = Code::kOk;
  std::string reason;
  friend bool operator==(const Bye&, const Bye&) = default;
};

// Asks the receiver for an import of one of its regions. Access bits are those of a region.
struct ImportRequest {
  uint64_t request = 0;  // chosen by the sender, repeated by the reply
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint8_t wantedAccess = 0;
  std::vector<std::string> links{};  // over which it can be imported, best first
  friend bool operator==(const ImportRequest&, const ImportRequest&) = default;
};

// When `code` is not kOk, the fields after `reason` mean nothing.
struct ImportReply {
  uint64_t request = 0;
  Code code = Code::kOk;
  std::string reason{};
  std::string link{};                 // over which it is granted
  uint8_t place = 0;                  // numbers of the memory's kind (memory_kind.h)
  uint8_t exported = 0;               //
  uint8_t shape = 0;                  //
  std::string kindName{};             // the kind for people, should the numbers be unknown
  uint64_t bytes = 0;                 //
  uint8_t access = 0;                 // the granted rights, which may be less than the wanted ones
  uint64_t allocation = 0;            // repeated from the request; new if there was none
  uint64_t generation = 0;            // (request 0: the slab of a new connection)
  int32_t device = 0;                 // GPU memory: the owner's number of the GPU
  std::array<uint8_t, 16> owner{};    // of memory on loan; zeros: the sender
  std::vector<std::byte> linkPart{};  // read by the same link of the other side only
  uint32_t fdCount = 0;
  friend bool operator==(const ImportReply&, const ImportReply&) = default;
};

// The importer has unmapped the region and will not use it again. Has no reply.
struct Release {
  uint64_t allocation = 0;
  uint64_t generation = 0;
  friend bool operator==(const Release&, const Release&) = default;
};

// Revocation: the owner wants the memory back. The importer answers RevokeDone once it no longer
// uses it.
struct Revoke {
  uint64_t request = 0;
  uint64_t allocation = 0;
  uint64_t generation = 0;
  // Its provider took the memory back, or its program freed it, without unregistering the region.
  bool freed = false;
  friend bool operator==(const Revoke&, const Revoke&) = default;
};

struct RevokeDone {
  uint64_t request = 0;
  Code code = Code::kOk;
  friend bool operator==(const RevokeDone&, const RevokeDone&) = default;
};

// A small message of the user's own, in order with other control messages and with no transfer.
struct UserMessage {
  uint32_t channel = 0;
  std::vector<std::byte> content;  // at most kMaxBlobBytes
  friend bool operator==(const UserMessage&, const UserMessage&) = default;
};

// A transfer on `lane` cannot go on at the sender; `code` is never kOk.
struct TransferFault {
  uint64_t lane = 0;
  Code code = Code::kInternal;
  std::string reason;
  friend bool operator==(const TransferFault&, const TransferFault&) = default;
};

// Asks for the descriptors or handles of some chunks of a region that the sender has imported.
struct ChunkRequest {
  uint64_t request = 0;  // chosen by the sender, repeated by the reply
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint64_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const ChunkRequest&, const ChunkRequest&) = default;
};

// When `code` is kOk, there is one descriptor or one handle for each chunk; else there are none.
struct ChunkReply {
  uint64_t request = 0;
  Code code = Code::kOk;
  std::string reason;
  uint64_t first = 0;  // repeated from the request, as the next
  uint32_t count = 0;
  uint32_t fdCount = 0;
  std::vector<std::byte> handles{};  // 64 bytes each, in order
  friend bool operator==(const ChunkReply&, const ChunkReply&) = default;
};

// Asks for staging memory: a region of the receiver for this connection alone, through which it
// moves what the sender cannot reach.
struct StagingRequest {
  uint64_t request = 0;  // chosen by the sender, repeated by the reply
  uint64_t bytes = 0;    // the size wanted; less is of no use
  friend bool operator==(const StagingRequest&, const StagingRequest&) = default;
};

// When `code` is not kOk, the fields after `reason` mean nothing. The region is then imported as
// any other.
struct StagingReply {
  uint64_t request = 0;
  Code code = Code::kOk;
  std::string reason;
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint64_t bytes = 0;
  friend bool operator==(const StagingReply&, const StagingReply&) = default;
};

// One piece of a registered region of the receiver.
struct StagedPiece {
  uint64_t allocation = 0;
  uint64_t generation = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const StagedPiece&, const StagedPiece&) = default;
};

// Asks the receiver to copy between its staging memory, where the pieces lie side by side from
// `offset` on, and regions of its own.
struct StagedMove {
  uint64_t request = 0;
  bool outOfStaging = false;  // into the regions; else into the staging memory
  uint64_t offset = 0;
  std::vector<StagedPiece> pieces;  // at most kMaxPieces
  friend bool operator==(const StagedMove&, const StagedMove&) = default;
};

// The move has ended: the sender touches no memory for it any more.
struct StagedMoveDone {
  uint64_t request = 0;
  Code code = Code::kOk;
  std::string reason;
  friend bool operator==(const StagedMoveDone&, const StagedMoveDone&) = default;
};

// The sender's program, or library, has taken `count` more messages of the channel: the receiver
// may send as many more.
struct MessagesTaken {
  uint32_t channel = 0;
  uint32_t count = 0;
  friend bool operator==(const MessagesTaken&, const MessagesTaken&) = default;
};

// The sender has given one of the links up, and uses another one from now on.
struct LinkEnded {
  std::string transport;
  std::string reason;
  friend bool operator==(const LinkEnded&, const LinkEnded&) = default;
};

// From the sender's end of one link to the other end. Only between two sides that both know
// feature::kLinkMessages, and not before the sender has made the link.
struct LinkMessage {
  std::string transport;         // of the link
  std::vector<std::byte> words;  // read by the same transport of the other side only
  friend bool operator==(const LinkMessage&, const LinkMessage&) = default;
};

// A well-formed message of a later minor version. The receiver must skip it.
struct UnknownMessage {
  uint8_t type = 0;
  friend bool operator==(const UnknownMessage&, const UnknownMessage&) = default;
};

}  // namespace control

using ControlMessage =
    std::variant<control::Offers, control::Accepted, control::Ready, control::Heartbeat,
                 control::Bye, control::ImportRequest, control::ImportReply, control::Release,
                 control::Revoke, control::RevokeDone, control::UserMessage, control::TransferFault,
                 control::ChunkRequest, control::ChunkReply, control::StagingRequest,
                 control::StagingReply, control::StagedMove, control::StagedMoveDone,
                 control::MessagesTaken, control::LinkEnded, control::LinkMessage,
                 control::UnknownMessage>;

// The message's name as logs and dumps show it, e.g. "ImportReply". Lifetime: for ever.
std::string_view controlName(const ControlMessage& message);

// The bytes of one record. A `reason` is a sentence for people: one that is too long is cut, and
// its control characters become '?'. `features`: of the peer, by which it is told codes (toldAs()).
// Errors: kInvalidArgument naming any other field outside the
// limits above, a whole message too long for one record, or an UnknownMessage.
Result<std::vector<std::byte>> encodeControl(const ControlMessage& message,
                                             uint64_t features = UINT64_MAX);

// Errors: kCorrupt naming the field that breaks a limit, or the message when its structure does not
// verify. A code that this build does not know reads as kInternal. Allocates no more than the
// input's size and the limits above allow.
Result<ControlMessage> decodeControl(std::span<const std::byte> bytes);

}  // namespace peerlane
