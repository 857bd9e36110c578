// SPDX-License-Identifier: Apache-2.0
//
// `bench pingpong`: a plan that puts a message and adds to a signal, back and forth between two
// spinning processes; against the same with a raw copy and a flag. Both sides of the game. Confined
// to one thread.
#pragma once

#include <memory>

#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"

namespace peerlane::bench {

Status benchPingpong(BenchPair& pair, const BenchOptions& options, BenchReport& report);

// The child's side; keeps its plan between requests of one size.
class PingpongPartner {
 public:
  explicit PingpongPartner(BenchEndpoint& endpoint) : endpoint_(endpoint) {}
  Status serve(BenchPipe& pipe, const PingpongRequest& request);
  Status serveRaw(BenchPipe& pipe, const PingpongRequest& request);

 private:
  BenchEndpoint& endpoint_;
  uint64_t planBytes_ = 0;
  Plan plan_;
};

}  // namespace peerlane::bench
