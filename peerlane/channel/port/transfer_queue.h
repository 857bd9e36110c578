// SPDX-License-Identifier: Apache-2.0
//
// TransferQueue: a port queue that also carries copies that no copy engine and no mailbox reaches,
// such as those between GPUs on both sides of a link that maps nothing. It posts them as transfers,
// which are staged where they have to be (staged_transfer.h). All other work goes to the queue
// below, at once where nothing is waited for. Stores come after all copies before them; copies are
// not ordered among each other. External synchronization required.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "peerlane/channel/transfer/transfer.h"
#include "peerlane/program/ring/port_queue.h"

namespace peerlane {

class TransferQueue final : public PortQueue {
 public:
  TransferQueue(Peer peer, std::unique_ptr<PortQueue> straight)
      : peer_(std::move(peer)), straight_(std::move(straight)) {}
  // Cancels the transfers that run. Requires: isIdle(), or nobody needs the bytes.
  ~TransferQueue() override;
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  // Gives the queue below to another TransferQueue. Requires: isIdle(); this one is used no more.
  std::unique_ptr<PortQueue> takeStraight() { return std::move(straight_); }

  // `block` is copied, handles included. Errors: as copy().
  Status transfer(bool isPut, const Block& block);

  bool hasRoom() override;
  Status copy(const PortAddress& to, const PortAddress& from, uint64_t bytes) override;
  Status store(const PortAddress& word, uint64_t value) override;
  void mark(Mark passed) override;
  Advance advance() override;
  bool isIdle() override;
  Status health() override;

 private:
  static constexpr size_t kMostWaiting = 1024;
  static constexpr size_t kMostRunning = 16;
  enum class Kind : uint8_t { kTransfer, kCopy, kStore, kMark };
  struct Op {
    Kind kind = Kind::kStore;
    PortAddress to{};
    PortAddress from{};
    uint64_t bytes = 0;  // or the value
    bool isPut = false;
    Region local{};
    RemoteRegion remote{};
    uint64_t localOffset = 0;
    uint64_t remoteOffset = 0;
    Mark passed{};
  };
  bool isStraightOnly() const { return waiting_.empty() && running_.empty(); }
  bool reap();
  bool begin(const Op& op);

  const Peer peer_;
  std::unique_ptr<PortQueue> straight_;
  std::deque<Op> waiting_;
  std::vector<Transfer> running_;
  Status failure_;
};

}  // namespace peerlane
