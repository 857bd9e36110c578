// SPDX-License-Identifier: Apache-2.0
//
// BenchPair: the two processes of a benchmark, as the parent sees them: its own endpoint, the pipe
// to the child, and the requests every operation makes. The child is this program again, started
// before a context exists. Confined to one thread.
#pragma once

#include <sys/types.h>

#include <memory>
#include <span>
#include <string>

#include "tools/bench/sides/bench_endpoint.h"
#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_request.h"
#include "tools/measure/bench_pipe.h"

namespace peerlane::bench {

class BenchPair {
 public:
  // The name of the command that runs runBenchChild(), and the descriptor it finds its pipe at.
  static constexpr const char* kChildCommand = "bench-child";
  static constexpr int kChildPipe = 3;

  static Result<std::unique_ptr<BenchPair>> create(const BenchOptions& options,
                                                   uint64_t regionBytes);
  // Waits for the child.
  ~BenchPair();
  BenchPair(const BenchPair&) = delete;
  BenchPair& operator=(const BenchPair&) = delete;

  BenchEndpoint& endpoint() { return *endpoint_; }
  BenchPipe& pipe() { return pipe_; }
  pid_t child() const { return child_; }
  const std::string& childTicket() const { return childTicket_; }
  std::string link() const { return route().link; }
  Route route() const { return endpoint_->peer().route(); }
  std::string engine() const { return endpoint_->otherDestination().remote.engine(); }

  // Fills the child's source (or destination) with a pattern.
  Status fillOther(bool isSource, uint64_t bytes, uint64_t seed);
  // Wrong bytes in the child's destination; also counts a signal that did not arrive as all of
  // them.
  Result<uint64_t> verifyOther(const VerifyRequest& request, std::span<const VerifyPiece> pieces);

 private:
  explicit BenchPair(Descriptor end) : pipe_(std::move(end)) {}
  Status spawn(Descriptor childEnd);
  Status meet(const BenchOptions& options, uint64_t regionBytes);

  BenchPipe pipe_;
  pid_t child_ = -1;
  std::string childTicket_;
  std::unique_ptr<BenchEndpoint> endpoint_;
};

// The seed of what a destination is filled with before the pattern of `seed` is moved there.
inline uint64_t otherThan(uint64_t seed) {
  return ~seed;
}

// The seeds of one benchmark: no two patterns alike.
class Seeds {
 public:
  uint64_t next() { return ++last_; }
  uint64_t last() const { return last_; }

 private:
  uint64_t last_ = 0;
};

}  // namespace peerlane::bench
