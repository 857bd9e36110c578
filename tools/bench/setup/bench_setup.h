// SPDX-License-Identifier: Apache-2.0
//
// `bench setup`: what many regions cost: to register them, to announce and import them, in the
// first put and in later ones, and to take them back; in two processes that are as crowded as those
// of users (CrowdedProcess). Both sides. Confined to one thread.
#pragma once

#include <memory>

#include "tools/bench/setup/crowded_process.h"
#include "tools/bench/setup/region_pieces.h"
#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"

namespace peerlane::bench {

Status benchSetup(BenchPair& pair, const BenchOptions& options, BenchReport& report);
// Of the one registration beside which those apart are measured.
uint64_t setupRegionBytes(const BenchOptions& options);

// The child's side.
class SetupPartner {
 public:
  explicit SetupPartner(BenchEndpoint& endpoint) : endpoint_(endpoint) {}
  Status registerPieces(BenchPipe& pipe, const SetupRequest& request);
  Status share(BenchPipe& pipe) const;
  Status check(BenchPipe& pipe, uint64_t seed) const;
  Status unregister(BenchPipe& pipe);

 private:
  BenchEndpoint& endpoint_;
  std::unique_ptr<CrowdedProcess> crowd_;
  std::unique_ptr<RegionPieces> pieces_;
};

}  // namespace peerlane::bench
