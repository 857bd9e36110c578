// SPDX-License-Identifier: Apache-2.0
//
// The requests of a benchmark's parent process to its child, and the child's answers. Both are the
// same program, so the structs are sent as they are. Plain values.
#pragma once

#include <cstdint>
#include <string>

#include "tools/ceiling/ceiling_copy.h"
#include "tools/measure/bench_pipe.h"

namespace peerlane::bench {

enum BenchKind : uint32_t {
  // Answers
  kReady = 1,  // done, or: about to begin
  kFailed,     // text
  kTicketIs,   // text
  kRegions,    // see BenchEndpoint
  kWrongIs,    // uint64_t: wrong bytes
  kFootprintIs,
  kPortIs,         // uint16_t
  kReferencesAre,  // region references, one behind the other
  kTookIs,         // double: microseconds
  // Requests
  kSetup,         // EndpointSetup, descriptor of RawFlags; answered by kTicketIs
  kMakeRegions,   // answered by kRegions, and expects the parent's kRegions
  kFill,          // FillRequest
  kVerify,        // VerifyRequest and VerifyPiece[]; answered by kWrongIs
  kPingpong,      // PingpongRequest; kReady, the game, kWrongIs
  kRawPingpong,   // PingpongRequest; kReady, the game, kWrongIs
  kListen,        // answered by kPortIs
  kServeSocket,   // SocketRequest; kReady, the transfers, kReady
  kAcceptPeer,    // ConnectCheck; answered by kWrongIs
  kOpenMessages,  // MessageSetup, descriptor of the stage; both make a communicator; kReady
  kMessages,      // MessagesRequest; kReady, the messages, kReady
  kExtraPeers,    // ExtraPeersRequest and the parent's ticket; answered by kFootprintIs
  kSetUpPieces,   // SetupRequest; kReady
  kSharePieces,   // answered by kReferencesAre
  kCheckPieces,   // uint64_t: the seed; answered by kWrongIs
  kEndPieces,     // answered by kTookIs
};

struct FillRequest {
  bool isSource = false;
  uint64_t bytes = 0;
  uint64_t seed = 0;
};

// Part of the destination that must hold the source's bytes from `sourceOffset` on.
struct VerifyPiece {
  uint64_t offset = 0;
  uint64_t sourceOffset = 0;
  uint64_t bytes = 0;
};
struct VerifyRequest {
  uint64_t seed = 0;
  uint64_t signals = 0;  // what Signal 0 must have reached; 0: not looked at
};

struct PingpongRequest {
  uint64_t bytes = 0;
  uint64_t rounds = 0;
  uint64_t seed = 0;               // of the first round when `verify`
  bool verify = false;             // every round moves new bytes, and the receiver looks at each
  bool poll = false;               // see BenchOptions::pollSignals
  CopyWay way = CopyWay::kMemcpy;  // of the raw limit
};

struct ConnectCheck {
  uint64_t expected = 0;  // the first word of the child's destination
};

struct ExtraPeersRequest {
  uint32_t count = 0;
};
struct Footprint {
  uint64_t residentBytes = 0;
  uint64_t descriptors = 0;
};

struct SetupRequest {
  uint64_t count = 0;  // of regions
};

struct MessageSetup {
  uint8_t protocol = 0;  // peerlane::Protocol
  uint64_t stageBytes = 0;
};
struct MessagesRequest {
  uint64_t bytes = 0;   // of one message
  uint64_t stride = 0;  // between their places in the regions
  uint64_t count = 0;
  bool isBatch = false;  // all in one call, one way; else each is answered by one of the same size
  bool raw = false;      // copies and flags instead of messages
  CopyWay way = CopyWay::kMemcpy;  // of these copies
};

// The next message, which must be of `kind`; an error of the other process as its status.
inline Result<BenchMessage> receiveKind(BenchPipe& pipe, uint32_t kind) {
  PEERLANE_ASSIGN(BenchMessage message, pipe.receive());
  if (message.kind == kFailed)
    return Status(Code::kInternal,
                  "in the other process: " +
                      std::string(reinterpret_cast<const char*>(message.content.data()),
                                  message.content.size()));
  if (message.kind != kind)
    return Status(Code::kInternal, "bench message " + std::to_string(message.kind) + " where " +
                                       std::to_string(kind) + " was expected");
  return message;
}

}  // namespace peerlane::bench
