// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/transport_list.h"

#include <algorithm>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"

namespace peerlane {
namespace {

struct Entries {
  Mutex mutex;
  std::vector<TransportEntry> list PEERLANE_GUARDED_BY(mutex);  // best first
};

// Never destroyed: contexts may end during the end of the process.
Entries& entries() {
  static auto* const all = new Entries;
  return *all;
}

}  // namespace

void addTransport(TransportEntry entry) {
  Entries& all = entries();
  const MutexLock lock(all.mutex);
  const auto isNamed = [&](const TransportEntry& other) { return other.name == entry.name; };
  PEERLANE_CHECK(std::none_of(all.list.begin(), all.list.end(), isNamed));
  const auto at = std::upper_bound(
      all.list.begin(), all.list.end(), entry,
      [](const TransportEntry& a, const TransportEntry& b) { return a.place < b.place; });
  all.list.insert(at, std::move(entry));
}

void removeTransport(const std::string& name) {
  Entries& all = entries();
  const MutexLock lock(all.mutex);
  std::erase_if(all.list, [&](const TransportEntry& entry) { return entry.name == name; });
}

std::vector<TransportEntry> transportEntries() {
  Entries& all = entries();
  const MutexLock lock(all.mutex);
  return all.list;
}

}  // namespace peerlane
