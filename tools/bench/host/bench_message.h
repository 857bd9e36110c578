// SPDX-License-Identifier: Apache-2.0
//
// `bench sendrecv` (a message and its answer) and `bench batch` (many messages in one call):
// two-sided transfers of a communicator, against raw copies and flags between the same two
// processes. Both sides. Confined to one thread.
#pragma once

#include <memory>
#include <vector>

#include "peerlane/channel/communicator/communicator.h"
#include "tools/bench/sides/bench_options.h"
#include "tools/bench/sides/bench_pair.h"
#include "tools/bench/sides/bench_report.h"
#include "tools/ceiling/ceiling_copy.h"

namespace peerlane::bench {

uint64_t messageRegionBytes(const BenchOptions& options);
Status benchMessages(BenchPair& pair, const BenchOptions& options, BenchReport& report);

// One process' half: a communicator of two and the places of messages in the regions.
class MessageSide {
 public:
  explicit MessageSide(BenchEndpoint& endpoint) : endpoint_(endpoint) {}

  Status open(const MessageSetup& setup, const Descriptor& stage);
  Rank otherRank() const { return 1 - communicator_->rank(); }
  Communicator& communicator() { return *communicator_; }

  Result<Transfer> send(const MessagesRequest& request, uint64_t i);
  Result<Transfer> receive(const MessagesRequest& request, uint64_t i);
  Result<Transfer> sendBatch(const MessagesRequest& request);
  Result<Transfer> receiveBatch(const MessagesRequest& request);
  // Where raw copies of these messages go. Without a mapping of the other's memory, small ones go
  // to shared memory that stands for it: eager messages do the same.
  std::vector<RawPiece> rawPieces(const MessagesRequest& request, bool isParent);

 private:
  BenchEndpoint& endpoint_;
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<RawMapping> stage_;
  uint64_t stageBytes_ = 0;
};

// The child's requests.
class MessagePartner {
 public:
  explicit MessagePartner(BenchEndpoint& endpoint) : endpoint_(endpoint) {}
  Status open(BenchPipe& pipe, const MessageSetup& setup, const Descriptor& stage);
  Status serve(BenchPipe& pipe, const MessagesRequest& request);

 private:
  Status answerEach(BenchPipe& pipe, const MessagesRequest& request);
  Status takeBatch(BenchPipe& pipe, const MessagesRequest& request);
  Status answerRaw(BenchPipe& pipe, const MessagesRequest& request);
  BenchEndpoint& endpoint_;
  std::unique_ptr<MessageSide> side_;
};

}  // namespace peerlane::bench
