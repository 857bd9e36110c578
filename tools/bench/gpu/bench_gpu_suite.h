// SPDX-License-Identifier: Apache-2.0
//
// The whole table of what GPUs must reach, and the raw limits alone. Under five minutes on two
// GPUs. Confined to one thread.
#pragma once

#include "tools/bench/gpu/bench_gpu_connect.h"
#include "tools/bench/gpu/bench_gpu_contest.h"
#include "tools/bench/gpu/bench_gpu_pingpong.h"
#include "tools/bench/gpu/bench_gpu_report.h"

namespace peerlane::bench {

// How much of each region the suite uses.
uint64_t gpuSuiteRegionBytes();

// A row that cannot be measured is reported as failed, and the next one is tried. Errors: kPeerLost
// when the other process is gone.
Status runGpuSuite(GpuPair& pair, bool ceilingsOnly, GpuReport& report);

// One row, measured and added to the report: what the suite and single operations have alike.
// Extras and names are the caller's. Errors as above.
Status addGpuRow(GpuPair& pair, const GpuCase& what, const GpuContestSettings& settings, GpuRow row,
                 GpuReport& report);
GpuRow gpuRowFor(GpuPair& pair, const GpuCase& what, const std::string& name,
                 GpuTarget target = {});
Status addGpuConnectRows(GpuPair& pair, uint64_t samples, GpuReport& report);
Status addGpuPingpongRow(GpuPair& pair, uint64_t bytes, bool withOurs, bool withCeiling,
                         GpuReport& report);

// kUnavailable, naming the figures, when the raw limits of a machine that is listed are below 0.95
// of what was recorded there; OK on every other machine.
Status checkRecordedCeilings(GpuPair& pair, GpuReport& report);

// Send and receive on streams, to and fro; in graphs, or one by one.
Status addGpuMessageRow(GpuPair& pair, uint64_t bytes, bool inGraph, bool withOurs,
                        const GpuTarget& target, GpuReport& report, uint64_t samples = 0,
                        Protocol protocol = Protocol::kAuto);

// Many pieces by send and receive on streams: as one message, or as a message each.
Status addGpuListRow(GpuPair& pair, uint64_t pieces, uint64_t pieceBytes, bool asOne,
                     bool withCeiling, const GpuTarget& target, GpuReport& report,
                     uint64_t samples = 0);

}  // namespace peerlane::bench
