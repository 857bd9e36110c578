// SPDX-License-Identifier: Apache-2.0
//
// QuarantineLines: the log lines about regions that are kept because a peer may still write to
// them. A program takes back its regions one by one, and a peer may have imported thousands: the
// first of a peer is a line at once, and a second later those that came meanwhile are one line with
// their count. Owned by RegionLife; confined to the progress thread.
#pragma once

#include <cstdint>
#include <map>

#include "peerlane/memory/region_table.h"
#include "peerlane/os/event_loop.h"

namespace peerlane {

class QuarantineLines {
 public:
  using Number = RegionTable::PeerNumber;

  // `isAbsent`: the peer left without a goodbye; else it is silent.
  void add(EventLoop& loop, Number peer, bool isAbsent, uint64_t allocation);
  // Writes what is counted: the context ends.
  void stop();

 private:
  struct Known {
    bool isAbsent = false;
    uint64_t more = 0;
  };
  void write(EventLoop& loop);
  static void writeCount(Number peer, const Known& known);

  std::map<Number, Known> peers_;  // that had a line in the last second
  Timer next_;
};

}  // namespace peerlane
