// SPDX-License-Identifier: Apache-2.0
//
// NumaPlaces: the NUMA nodes whose processors this process may use: to bind threads to them, and to
// find the one where memory lies. Thread-safe once loaded.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "peerlane/core/status.h"

struct hwloc_topology;

namespace peerlane {

class NumaPlaces {
 public:
  static constexpr int kUnknown = -1;

  // Takes some milliseconds; knows only the processors that the process may use at this time. A
  // machine without nodes counts as one. Errors: kSystem.
  static Result<NumaPlaces> load();

  // At least 1. Nodes without processors of this process are not counted.
  size_t count() const { return nodes_.size(); }
  // The calling thread runs on those processors of this node only that the process may use, from
  // now on, whichever its creator was bound to. Requires: place < count(). Errors: kSystem.
  Status bindThisThread(size_t place) const;
  // The place of the page that holds `address`; kUnknown where there is one place only, where the
  // page has not been touched yet, and where the system does not say. A system call and an
  // allocation else.
  int placeOf(const void* address) const;

 private:
  struct Destroy {
    void operator()(hwloc_topology* topology) const;
  };
  std::unique_ptr<hwloc_topology, Destroy> topology_;
  std::vector<unsigned> nodes_;  // the system's numbers
};

// The system's number of the node on which the page that holds `address` lies. Empty: it has not
// been touched yet, or the system does not say. A system call.
std::optional<int> numaNodeOf(const void* address);
// Whether memory lies on more than one node. The system is asked once.
bool hasSeveralNumaNodes();
// Whether one of both pages is known to lie on another node than the processor of this thread. A
// system call.
bool isFarFromThisThread(const void* one, const void* other);

}  // namespace peerlane
