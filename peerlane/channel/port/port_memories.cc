// SPDX-License-Identifier: Apache-2.0
//
// Memory of a port that its provider takes back, or whose owner at the other side does: channels
// over it end with kRevoked, and the service lets go of it as soon as its queues have passed the
// requests that were begun, so that the provider need not wait for the user of the port.
#include <algorithm>

#include "peerlane/channel/port/port_core.h"
#include "peerlane/memory/region_table.h"

namespace peerlane {

Status revokedMemory(MemoryId id) {
  return Status(Code::kRevoked, "memory " + std::to_string(id) +
                                    " of a port was taken back by its provider, or freed, before "
                                    "it was unregistered");
}

bool PortMemory::isRevoked() const {
  return (local && local.record()->gate.isRevoked()) || (imported && imported->gate.isRevoked());
}

void PortMemory::letGo() {
  if (std::exchange(isLetGo, true)) return;
  under.clear();
  if (local) local.record()->gate.leave();
  if (imported) imported->gate.leave();
}

// Threads of the device find no address from now on, and those that wait on a channel over it end.
void PortCore::beginRevoked(MemoryId id) {
  PortMemory& memory = *memories_[id];
  memory.isEnding = true;
  if (const Status written = writeWords(reinterpret_cast<std::byte*>(entries_ + id), 0, 0);
      !written.isOk())
    fail(written);
  for (const auto& each : memory.users)
    if (const auto semaphore = each.lock()) end(*semaphore, revokedMemory(id), true);
  // Requests that are begun later are refused.
  for (const auto& connection : connections_) {
    auto passed = std::make_shared<std::atomic<bool>>(false);
    connection->queue->mark(passed);
    memory.under.emplace_back(connection, std::move(passed));
  }
}

void PortCore::lookAtMemories() {
  for (MemoryId id = 0; id < memories_.size(); ++id) {
    PortMemory* const memory = memories_[id].get();
    if (memory == nullptr || memory->isLetGo || !memory->isRevoked()) continue;
    if (!memory->isEnding) beginRevoked(id);
    const bool isUntouched = std::ranges::all_of(memory->under, [](const auto& one) {
      return one.second->load(std::memory_order_acquire) || one.first->queue->isIdle();
    });
    if (isUntouched) memory->letGo();
  }
}

}  // namespace peerlane
