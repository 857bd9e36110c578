// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/cuda_ipc/kept_imports.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "peerlane/os/process.h"

namespace peerlane {

std::optional<ProcessName> ProcessName::of(pid_t pid, uint64_t life) {
  if (pid <= 0) return std::nullopt;
  const auto start = processStartTime(pid);
  if (!start.isOk()) return std::nullopt;
  return ProcessName{pid, *start, life};
}

Result<std::shared_ptr<CudaMapping>> KeptImports::find(const ProcessName& owner, uint64_t identity,
                                                       uint64_t bytes, const Import& import) {
  const MutexLock lock(mutex_);
  const Key key{owner, identity, bytes};
  if (const auto found = entries_.find(key); found != entries_.end()) {
    found->second.idleSince.reset();
    return found->second.mapping;
  }
  PEERLANE_ASSIGN(auto mapping, import());
  entries_.emplace(key, Entry{mapping});
  return mapping;
}

void KeptImports::sweep(Clock::time_point now) {
  std::vector<std::shared_ptr<CudaMapping>> gone;  // outlive the lock: to unmap takes long
  const MutexLock lock(mutex_);
  std::vector<std::map<Key, Entry>::iterator> idle;
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    Entry& entry = at->second;
    // Other threads can get the mapping through find() alone.
    if (entry.mapping.use_count() > 1)
      entry.idleSince.reset();
    else if (!entry.idleSince)
      entry.idleSince = now;
    if (entry.idleSince) idle.push_back(at);
  }
  std::sort(idle.begin(), idle.end(),
            [](const auto& a, const auto& b) { return a->second.idleSince > b->second.idleSince; });
  for (size_t i = 0; i < idle.size(); ++i) {
    const auto& [key, entry] = *idle[i];
    if (i < kMostIdle && now - *entry.idleSince < kIdleTime &&
        ProcessName::of(key.owner.pid, key.owner.life) == key.owner)
      continue;
    gone.push_back(std::move(idle[i]->second.mapping));
    entries_.erase(idle[i]);
  }
}

}  // namespace peerlane
