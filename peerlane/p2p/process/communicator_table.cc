// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/communicator_table.h"

#include <utility>

namespace peerlane::p2p {

P2PComm CommunicatorTable::add(std::shared_ptr<PairCommunicator> pair) {
  const WriterLock lock(mutex_);
  const auto handle = reinterpret_cast<P2PComm>(uintptr_t{next_++});
  pairs_.emplace(handle, std::move(pair));
  return handle;
}

std::shared_ptr<PairCommunicator> CommunicatorTable::find(P2PComm comm) const {
  const ReaderLock lock(mutex_);
  const auto found = pairs_.find(comm);
  return found == pairs_.end() ? nullptr : found->second;
}

std::shared_ptr<PairCommunicator> CommunicatorTable::take(P2PComm comm) {
  const WriterLock lock(mutex_);
  auto taken = pairs_.extract(comm);
  return taken.empty() ? nullptr : std::move(taken.mapped());
}

std::vector<std::shared_ptr<PairCommunicator>> CommunicatorTable::with(
    const ProcessToken& process) const {
  const ReaderLock lock(mutex_);
  std::vector<std::shared_ptr<PairCommunicator>> found;
  for (const auto& [handle, pair] : pairs_)
    if (pair->other() == process) found.push_back(pair);
  return found;
}

}  // namespace peerlane::p2p
