// SPDX-License-Identifier: Apache-2.0
//
// Bytes of WRITEs on their way into a target's memory, and READs that may be overtaken. In the
// order in which they came where that is asked for; else pieces wait, for a while that is chosen by
// seed, and go in any order that the rules allow: into relaxed regions before whatever came
// earlier; with adaptive routing all of them. flush() is what a SEND, an immediate, an atomic and,
// by the settings, an acknowledgement wait for. Under the context's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace peerlane::softhca {

class QueuePair;

class Placement {
 public:
  explicit Placement(QueuePair& pair) : pair_(pair) {}
  Placement(const Placement&) = delete;

  // The key was checked. False: it is gone meanwhile.
  bool write(uint32_t key, uint64_t address, const uint8_t* bytes, size_t count, uint64_t now);
  // Everything is in place afterwards. False: a key was revoked meanwhile.
  bool flush();
  // All that came so far is acknowledged, placed or not.
  void acknowledge();
  // The same as flush() for what was acknowledged: no READ overtakes that.
  bool flushAcknowledged();
  // Some of what waited long enough. False as flush().
  bool turn(uint64_t now);
  bool isEmpty() const { return pieces_.empty(); }
  uint64_t nextTime() const { return pieces_.empty() ? UINT64_MAX : due_; }
  void drop() { pieces_.clear(); }

 private:
  struct Piece {
    uint32_t key;
    bool mayOvertake;
    bool isAcknowledged;
    uint64_t address;
    std::vector<uint8_t> bytes;
  };
  bool place(const Piece& piece);
  bool placeOne();
  bool placeAt(size_t index);

  QueuePair& pair_;
  std::vector<Piece> pieces_;
  uint64_t due_ = 0;
};

}  // namespace peerlane::softhca
