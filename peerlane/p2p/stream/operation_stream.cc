// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/stream/operation_stream.h"

#include <utility>

namespace peerlane::p2p {
namespace {

// Above all addresses of a process, so that no stream of CUDA has such a handle; each is used once.
constexpr uintptr_t kFirstHandle = uintptr_t{0xf1} << 56 | 1;

}  // namespace

Result<std::shared_ptr<HostQueue>> HostQueue::create() {
  auto queue = std::make_shared<HostQueue>();
  PEERLANE_ASSIGN(queue->stream, HostStream::create());
  return queue;
}

void OperationStream::record(const Transfer& transfer, PostName name,
                             PendingTransfers& communicator) const {
  // The communicator's own queue has no handle, so nobody can ask it.
  if (host && !isOwn) host->pending.add(transfer, name);
  communicator.add(transfer, name);
}

bool HostStreams::isOne(aclrtStream handle) {
  return reinterpret_cast<uintptr_t>(handle) >> 56 == kFirstHandle >> 56;
}

Result<aclrtStream> HostStreams::create() {
  PEERLANE_ASSIGN(auto queue, HostQueue::create());
  const WriterLock lock(mutex_);
  const auto handle = reinterpret_cast<aclrtStream>(kFirstHandle + 2 * made_++);
  queues_.emplace(handle, std::move(queue));
  count_.store(queues_.size(), std::memory_order_release);
  return handle;
}

std::shared_ptr<HostQueue> HostStreams::find(aclrtStream handle) const {
  if (count_.load(std::memory_order_acquire) == 0) return nullptr;
  const ReaderLock lock(mutex_);
  const auto found = queues_.find(handle);
  return found == queues_.end() ? nullptr : found->second;
}

std::shared_ptr<HostQueue> HostStreams::take(aclrtStream handle) {
  const WriterLock lock(mutex_);
  auto taken = queues_.extract(handle);
  count_.store(queues_.size(), std::memory_order_release);
  return taken.empty() ? nullptr : std::move(taken.mapped());
}

}  // namespace peerlane::p2p
