// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/stream/pending_transfers.h"

#include <algorithm>
#include <string>
#include <utility>

namespace peerlane::p2p {
namespace {

constexpr size_t kFewest = 64;

}  // namespace

void PendingTransfers::noteEnd(const Pending& pending) {
  if (!first_.isOk()) return;
  Status status = pending.transfer.status();
  if (status.isOk()) return;
  first_ = status.withContext(std::string(pending.name.call) + " " +
                              std::to_string(pending.name.number) +
                              " of the communicator (calls, from 1)");
}

void PendingTransfers::reap() {
  std::erase_if(transfers_, [this](const Pending& pending) PEERLANE_REQUIRES(mutex_) {
    if (!pending.transfer.done()) return false;
    noteEnd(pending);
    return true;
  });
  reapAt_ = std::max(kFewest, 2 * transfers_.size());
}

void PendingTransfers::add(Transfer transfer, PostName name) {
  const MutexLock lock(mutex_);
  // Most transfers end in the order of posting.
  while (!transfers_.empty() && transfers_.front().transfer.done()) {
    noteEnd(transfers_.front());
    transfers_.pop_front();
  }
  if (closed_) transfer.cancel();
  transfers_.push_back({std::move(transfer), name});
  if (transfers_.size() >= reapAt_) reap();
}

Status PendingTransfers::firstError() {
  const MutexLock lock(mutex_);
  reap();
  return first_;
}

Status PendingTransfers::takeFirstError() {
  const MutexLock lock(mutex_);
  reap();
  return std::exchange(first_, Status::ok());
}

Status PendingTransfers::wait(std::chrono::nanoseconds timeout) {
  std::deque<Pending> all;
  {
    const MutexLock lock(mutex_);
    all = transfers_;
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (const auto& [transfer, name] : all) {
    const auto left = deadline - std::chrono::steady_clock::now();
    Status waited =
        transfer.wait(std::max<std::chrono::nanoseconds>(left, std::chrono::nanoseconds(0)));
    // A transfer that was captured into a graph stands for all replays, so it never ends.
    if (transfer.done() || waited.code() == Code::kNotSupported) continue;
    if (waited.code() != Code::kTimeout) return waited;
    const auto open = std::count_if(all.begin(), all.end(),
                                    [](const Pending& each) { return !each.transfer.done(); });
    return Status(
        Code::kTimeout,
        "waited " +
            std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) +
            " ms; not ended yet: " + std::to_string(open) + " of " + std::to_string(all.size()) +
            " operations, which go on");
  }
  return Status::ok();
}

void PendingTransfers::close() {
  {
    const MutexLock lock(mutex_);
    closed_ = true;
  }
  cancel();
}

void PendingTransfers::cancel() {
  const MutexLock lock(mutex_);
  for (const Pending& pending : transfers_) pending.transfer.cancel();
}

}  // namespace peerlane::p2p
