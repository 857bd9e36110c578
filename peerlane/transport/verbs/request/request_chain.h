// SPDX-License-Identifier: Apache-2.0
//
// RequestChain: requests that are posted by one call of the device's driver. Room for them and
// their pieces of memory, filled in order and used again. One thread.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace peerlane {

class RequestChain {
 public:
  static constexpr uint32_t kRequests = 32;
  static constexpr uint32_t kPieces = 16;  // of a request, at most
  static constexpr uint32_t kInlineBytes = 64;

  bool isEmpty() const { return count_ == 0; }
  bool isFull() const { return count_ == kRequests; }
  uint32_t count() const { return count_; }
  ibv_send_wr* first() { return requests_.data(); }
  ibv_send_wr& last() { return requests_[count_ - 1]; }
  void clear() { count_ = 0; }

  // One more, of no pieces yet. Requires: !isFull().
  ibv_send_wr& add(ibv_wr_opcode opcode) {
    ibv_send_wr& request = requests_[count_];
    // Not the whole of it, which takes as long as all the rest: what belongs to the operation is
    // its maker's to write.
    request.next = nullptr;
    request.opcode = opcode;
    request.sg_list = pieces_[count_].data();
    request.num_sge = 0;
    request.send_flags = 0;
    if (count_ != 0) requests_[count_ - 1].next = &request;
    ++count_;
    return request;
  }
  // Takes the last one back.
  void drop() {
    if (--count_ != 0) last().next = nullptr;
  }
  // Adds memory to the last one; joins it to the piece before where it goes on there.
  void addPiece(uint64_t address, uint32_t bytes, uint32_t key) {
    ibv_send_wr& request = last();
    if (request.num_sge != 0) {
      ibv_sge& before = request.sg_list[request.num_sge - 1];
      if (before.lkey == key && before.addr + before.length == address) {
        before.length += bytes;
        return;
      }
    }
    request.sg_list[request.num_sge++] = {.addr = address, .length = bytes, .lkey = key};
  }
  // The last one carries these bytes itself. Returns where to write them; valid until it is posted.
  std::byte* carry(uint32_t bytes) {
    std::byte* const room = carried_[count_ - 1].data();
    addPiece(reinterpret_cast<uintptr_t>(room), bytes, 0);
    last().send_flags |= IBV_SEND_INLINE;
    return room;
  }

 private:
  std::array<ibv_send_wr, kRequests> requests_{};
  std::array<std::array<ibv_sge, kPieces>, kRequests> pieces_{};
  std::array<std::array<std::byte, kInlineBytes>, kRequests> carried_{};
  uint32_t count_ = 0;
};

}  // namespace peerlane
