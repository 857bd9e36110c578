// SPDX-License-Identifier: Apache-2.0
//
// The initiator's half of a pair: takes requests from the send ring in order, sends them as
// packets, sends again what is not acknowledged in time, and completes them in order. All under the
// context's lock.
#pragma once

#include <cstdint>

#include "tests/fake/software_hca/hca_ring.h"
#include "tests/fake/software_hca/hca_spin.h"

namespace peerlane::softhca {

class QueuePair;
struct Lane;
struct SendEntry;

class Sender {
 public:
  explicit Sender(QueuePair& pair) : pair_(pair) {}
  Sender(const Sender&) = delete;

  void begin(uint32_t psn);  // the pair goes to RTS
  void reset();
  // True: something was sent or ended.
  bool turn(uint64_t now);
  void take(const Packet& answer, uint64_t now);
  void onTime(uint64_t now);
  // When onTime() or turn() has something to do; UINT64_MAX: never.
  uint64_t nextTime() const;
  // Everything that was posted ends: the first with this status, the others flushed.
  void endAll(int status);
  // Nothing is posted that is not done, but for what may not begin because the context is held.
  bool isSettled() const;
  // Nothing is posted that is not done.
  bool isIdle() const;

  Count completions, retries, rnrRetries;

 private:
  bool begin(SendEntry& entry);
  bool mayWait(const SendEntry& entry) const;
  bool sendPiece(SendEntry& entry, uint64_t now);
  void fill(Packet& packet, SendEntry& entry) const;
  void advance(const SendEntry& entry, uint32_t bytes, uint64_t now);

  void acknowledge(uint32_t psn, uint64_t now);
  void completeDone(uint64_t now);
  void complete(SendEntry& entry, uint64_t number, int status);
  void takeData(const Packet& answer, uint64_t now);
  void takeNak(const Packet& answer, uint64_t now);
  void takeNotReady(const Packet& answer, uint64_t now);
  SendEntry* outstanding(uint32_t psn, uint64_t* number = nullptr) const;
  void rewind(uint32_t psn);
  void arm(uint64_t now);
  bool isTargetSlow() const;

  QueuePair& pair_;
  // Entries: [oldest_, next_) are sent, of next_ the first offset_ bytes; before begun_ all were.
  uint64_t oldest_ = 0, next_ = 0, begun_ = 0, offset_ = 0;
  uint32_t psn_ = 0;           // of the next packet
  uint32_t acknowledged_ = 0;  // all before it are
  uint32_t attempt_ = 1;       // differs after each time that it went back
  uint32_t readsOut_ = 0;
  // Where the last request lies in a ring: its target is slow while that was not read.
  const Lane* sentLane_ = nullptr;
  uint64_t sentPlace_ = 0;
  uint64_t deadline_ = UINT64_MAX, notReadyUntil_ = 0;
  bool wasLate_ = false;  // the last turn found the deadline past
  int retriesLeft_ = 0, rnrRetriesLeft_ = 0;
};

}  // namespace peerlane::softhca
