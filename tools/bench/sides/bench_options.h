// SPDX-License-Identifier: Apache-2.0
//
// BenchOptions: what to measure, as the command line says it, and its check. Plain value.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "peerlane/core/status.h"

namespace peerlane::bench {

struct BenchOptions {
  std::string operation;  // one of operations()
  // The sweep: from `begin` to `end`, multiplied by `factor`. 0: the operation's own default.
  uint64_t beginBytes = 0;
  uint64_t endBytes = 0;
  uint64_t factor = 0;
  // Timed samples and untimed ones before them, per size. 0 samples: as many as fit about a second.
  uint64_t samples = 0;
  uint64_t warmup = 5;
  // A scattered list of `blocks` x `blockBytes` per call instead of the sweep.
  uint64_t blocks = 0;
  uint64_t blockBytes = 0;
  bool indexed = false;           // the list as fresh block numbers on a prepared layout
  std::string memory = "mapped";  // or "private"
  std::string link = "auto";      // or "shm", "tcp", "verbs"
  std::string engine = "auto";    // or "mapped", "cma", "ring"
  std::vector<int> cpus;          // of the two processes; empty: the first two cores
  std::string protocol = "auto";  // sendrecv, batch; or "eager", "get", "put", "ring"
  bool pollSignals = false;       // pingpong: Signal::value() in a loop, not Signal::wait()
  std::string api = "peerlane";   // connect: or "p2p", the C API
  bool ceiling = false;
  bool check = false;        // verify every sample instead of eight per size
  uint64_t copyThreads = 0;  // that help (ContextOptions::copyThreads), put and get
  std::string tuneFile{};    // measure thresholds into this file
  // GPUs: "cuda", "cuda:I", "cuda:I,cuda:J". The rest of this group is for them alone.
  std::string device = "host";
  bool suite = false;     // the whole table of what GPUs must reach
  uint64_t window = 1;    // messages in flight
  bool prepared = false;  // the list as a plan
  uint64_t ctas = 0;      // of the kernel; 0: as many as are useful
  std::string jsonFile;
  bool appendJson = false;  // keep the rows that the file already has

  bool isScattered() const { return blocks > 0; }
  bool isForGpus() const { return device != "host"; }
  // Over a link that could as well lead to another host.
  bool isOverNetwork() const;
};

// The names `peerlane bench` accepts.
const std::vector<std::string>& operations();

// Fills in the operation's defaults. kInvalidArgument names the option, its value and the accepted
// values.
Status complete(BenchOptions& options);
// The same where isForGpus(). The operation may be missing: the raw limits of the whole table.
Status completeForGpus(BenchOptions& options);
// The same where `api` is p2p: connecting by the C API, which chooses link, engine and sizes
// itself.
Status checkForP2p(const BenchOptions& options);
// The GPUs that `device` names: none, one or two. kInvalidArgument.
Result<std::vector<int>> gpusOf(const BenchOptions& options);

// Bytes of one iteration, ascending. Requires: complete() succeeded.
std::vector<uint64_t> sweep(const BenchOptions& options);

// Timed samples for an iteration of `bytes`.
uint64_t samplesFor(const BenchOptions& options, uint64_t bytes);
// How long to go on if the user did not say how many; 0: no limit.
std::chrono::seconds limitFor(const BenchOptions& options);

}  // namespace peerlane::bench
