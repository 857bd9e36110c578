// SPDX-License-Identifier: Apache-2.0
//
// Footprint: what this process and one context hold, to be compared before and after something
// went wrong. Values.
#pragma once

#include <functional>
#include <ostream>
#include <string>

#include "peerlane/peerlane.h"

namespace peerlane {

struct Footprint {
  size_t descriptors = 0;
  size_t sharedMappings = 0;  // of memfds and other unnamed files
  size_t regions = 0;         // in the context's dump, as the next two
  size_t peers = 0;
  size_t pending = 0;

  static Footprint of(const Context& context);
  // Of a context that begins and ends nothing of its own any more. A descriptor that is being
  // passed is open twice for a moment, so this is the least of what was seen, once 50 looks in a
  // row have seen no less. `between`: called before each look.
  static Footprint atRest(const Context& context, const std::function<void()>& between);
  friend bool operator==(const Footprint&, const Footprint&) = default;
};
std::ostream& operator<<(std::ostream& out, const Footprint& footprint);

// The value of a series in Context::metrics() without labels, -1 if there is none.
int64_t metricOf(const Context& context, const std::string& name);
// Some mapping of this process covers all of [address, address + bytes).
bool isMapped(const void* address, size_t bytes);

}  // namespace peerlane
