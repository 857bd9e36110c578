// SPDX-License-Identifier: Apache-2.0
//
// The target's half of a pair: takes the packets of its one peer in the order of their numbers,
// checks keys and rights, places or fetches bytes, uses receives, and answers. All under the
// context's lock.
#pragma once

#include <array>
#include <deque>

#include "tests/fake/software_hca/hca_placement.h"
#include "tests/fake/software_hca/hca_receive_queue.h"
#include "tests/fake/software_hca/hca_ring.h"

namespace peerlane::softhca {

class QueuePair;

class Responder {
 public:
  explicit Responder(QueuePair& pair) : pair_(pair), placement_(pair) {}
  Responder(const Responder&) = delete;

  void begin(uint32_t psn);  // the pair goes to RTR
  void reset();
  // There is room for one answer.
  void take(const Packet& request, uint64_t now);
  // Answers that are owed: pieces of READs, acknowledgements. True: something was sent.
  bool turn(uint64_t now);
  uint64_t nextTime() const;
  // Receives end as flushed; what was half received first.
  void endAll();
  bool isSettled() const { return placement_.isEmpty() && !isOwing(); }

  Count completions;

 private:
  struct ReadJob {
    uint32_t psn, attempt, key;
    uint64_t address, length, done;
    bool isDeferred;  // until ackAt_
  };
  struct AtomicResult {
    uint32_t psn;
    uint64_t found;
    bool isValid;
  };

  bool isFromPeer(const Packet& packet) const;
  void takeInOrder(const Packet& request, uint64_t now);
  void acknowledgePart();
  void takeAgain(const Packet& request);
  bool takeWrite(const Packet& request, uint64_t now);
  bool takeSend(const Packet& request, uint64_t now);
  bool takeRead(const Packet& request, uint64_t now);
  bool takeAtomic(const Packet& request);
  bool useReceive(const Packet& request);
  void complete(const Packet& request, ibv_wc_opcode opcode, uint32_t bytes);
  void refuse(const Packet& request, NakReason reason, int event);
  bool isRefused(const Packet& request, unsigned right);

  struct Reserved {
    Packet* packet = nullptr;  // null: no room
    PacketRing* ring = nullptr;
  };
  Reserved reserveAnswer(size_t bytes);
  // False: no room.
  bool answer(PacketKind kind, uint32_t psn, uint8_t detail, uint64_t swap = 0,
              uint32_t attempt = 0);
  bool sendReadPiece(ReadJob& job);
  bool sendOwed(uint64_t now);
  bool isOwing() const { return isAckDue_ || isRefusing_ || !reads_.empty(); }

  QueuePair& pair_;
  Placement placement_;
  uint32_t expected_ = 0;
  bool isGapKnown_ = false;  // a NAK is on its way; drop until the number comes
  bool isAckDue_ = false;
  uint64_t ackAt_ = 0;
  std::deque<ReadJob> reads_;
  std::array<AtomicResult, 16> results_{};
  uint32_t lastResult_ = 0;
  // Of the message that comes in.
  Receive receive_;
  bool hasReceive_ = false;
  uint64_t received_ = 0;
  uint32_t unanswered_ = 0;  // packets since the last answer
  // A refusal waits until what came before is answered.
  bool isRefusing_ = false;
  uint32_t refusedPsn_ = 0;
  NakReason reason_ = NakReason::kSequence;
};

}  // namespace peerlane::softhca
