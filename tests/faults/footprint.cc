// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/footprint.h"

#include <bit>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "peerlane/os/process.h"
#include "tests/os/open_files.h"

namespace peerlane {

Footprint Footprint::of(const Context& context) {
  Footprint footprint;
  footprint.descriptors = openFileCount().value();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("(deleted)") != std::string::npos) ++footprint.sharedMappings;
  std::istringstream dump(context.dump());
  for (std::string line; std::getline(dump, line);) {
    if (line.starts_with("  region ")) ++footprint.regions;
    if (line.starts_with("  peer ")) ++footprint.peers;
    if (line.starts_with("    ")) ++footprint.pending;
  }
  return footprint;
}

Footprint Footprint::atRest(const Context& context, const std::function<void()>& between) {
  Footprint least = of(context);
  for (int same = 0; same < 50;) {
    between();
    const Footprint now = of(context);
    const bool isLess = now.descriptors < least.descriptors ||
                        now.sharedMappings < least.sharedMappings || now.regions < least.regions ||
                        now.peers < least.peers;
    same = isLess ? 0 : same + 1;
    if (isLess) least = now;
  }
  return least;
}

std::ostream& operator<<(std::ostream& out, const Footprint& footprint) {
  return out << footprint.descriptors << " descriptors, " << footprint.sharedMappings
             << " shared mappings, " << footprint.regions << " regions, " << footprint.peers
             << " peers, " << footprint.pending << " pending";
}

int64_t metricOf(const Context& context, const std::string& name) {
  std::istringstream text(context.metrics());
  for (std::string line; std::getline(text, line);)
    if (line.starts_with(name + " ")) return std::stoll(line.substr(name.size() + 1));
  return -1;
}

bool isMapped(const void* address, size_t bytes) {
  auto from = std::bit_cast<uintptr_t>(address);
  const uintptr_t end = from + bytes;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; from < end && std::getline(maps, line);) {
    unsigned long first = 0;
    unsigned long last = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &first, &last) == 2 && first <= from && from < last)
      from = last;
  }
  return from >= end;
}

}  // namespace peerlane
