// SPDX-License-Identifier: Apache-2.0
//
// `bench connect`: how long a new peer takes from connect() to its first byte in the other
// process' memory, with contexts that are warm; and what memory and descriptors every further peer
// costs this process. Both sides. Confined to one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"

namespace peerlane::bench {

Status benchConnect(BenchPair& pair, const BenchOptions& options, BenchReport& report);

// The child's side.
class ConnectPartner {
 public:
  explicit ConnectPartner(BenchEndpoint& endpoint) : endpoint_(endpoint) {}
  // Takes the peer that has just connected, and looks whether its word arrived.
  Status acceptPeer(BenchPipe& pipe, const ConnectCheck& check);
  // Connects contexts of its own to the parent's ticket; they stay until the next call.
  Status connectMore(BenchPipe& pipe, uint32_t count, const std::string& ticket);

 private:
  struct Extra {
    std::unique_ptr<Context> context;
    Peer peer;
  };
  BenchEndpoint& endpoint_;
  std::vector<Extra> extra_;
};

// Of this process, from /proc/self.
Footprint footprintOfThisProcess();

}  // namespace peerlane::bench
