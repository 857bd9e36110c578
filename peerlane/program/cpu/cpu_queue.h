// SPDX-License-Identifier: Apache-2.0
//
// CpuQueue: the port queue of host memory. Where both places have addresses, the calling thread
// copies, one slice in each advance(), so that neither a long copy nor many copies hold up other
// queues. Copies and stores to memory that the link cannot map go through a mailbox, whose entries
// take effect in order. External synchronization required.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "peerlane/program/cpu/host_copier.h"
#include "peerlane/program/model/mailbox.h"
#include "peerlane/program/ring/port_queue.h"

namespace peerlane::cpu {

class CpuQueue final : public PortQueue {
 public:
  // `mailbox`: of the link to the peer, or null where all memory is mapped. `copier`: makes
  // the large copies; null: memcpy makes them. Both must outlive the queue.
  explicit CpuQueue(Mailbox* mailbox, const HostCopier* copier = nullptr)
      : mailbox_(mailbox), copier_(copier) {}

  bool hasRoom() override { return ops_.size() + kMostPerRequest <= kMostOps; }
  Status copy(const PortAddress& to, const PortAddress& from, uint64_t bytes) override;
  Status store(const PortAddress& word, uint64_t value) override;
  void mark(Mark passed) override;
  Advance advance() override;
  bool isIdle() override;
  Status health() override { return failure_; }

 private:
  static constexpr uint32_t kMostOps = 1024;
  static constexpr uint64_t kSliceBytes = 256 * 1024;
  enum class Kind : uint8_t { kCopy, kStore, kMark };
  struct Op {
    Kind kind = Kind::kCopy;
    PortAddress to{};
    PortAddress from{};
    uint64_t bytes = 0;  // or the value
    uint64_t done = 0;
    Mark passed{};
  };
  bool carriesOn();
  bool mailboxIsIdle() const { return mailbox_ == nullptr || mailbox_->idle(); }
  bool step(Op& op, bool& moved, uint64_t& budget);
  bool post(const Op& op, uint64_t slice);

  Mailbox* const mailbox_;
  const HostCopier* const copier_;
  std::deque<Op> ops_;
  uint64_t posted_ = 0;
  std::array<Piece, Mailbox::kSlots> pieces_;  // of the entries under way
  Status failure_;
};

}  // namespace peerlane::cpu
