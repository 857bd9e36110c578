// SPDX-License-Identifier: Apache-2.0
//
// ChunkImports: chunks of imported regions that are memory in chunks (isInChunks). The importer
// asks for the chunks that a transfer touches, a few at a time; the owner makes their handles when
// they are asked for and closes descriptors when they are sent. So neither ever holds more than
// some dozens, however large the region is, and neither loop is kept from its other work for long.
// Owned by Imports; confined to the progress thread, but for request().
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "peerlane/core/log_limit.h"
#include "peerlane/memory/chunk_map.h"
#include "peerlane/memory/import_cache.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/wire/control_message.h"

namespace peerlane {

class ChunkImports {
 public:
  // Of one request.
  static constexpr uint64_t kPerRequest = kMaxPassedFds;

  // `settled` is called when chunks of the region have come, or will not come.
  ChunkImports(PeerEnvironment& env, std::function<void(const ImportedRegion&)> settled)
      : env_(env), settled_(std::move(settled)) {}

  // Any thread. `ranges`: what ChunkMap::ask() gave to the caller.
  void request(const std::shared_ptr<ImportedRegion>& region, std::vector<ChunkMap::Range> ranges);
  Status handle(control::ChunkReply& message);
  // The peer is lost or closed: requests end with its failure, and `settled` is called for none.
  void fail();

 private:
  struct QueuedRequest {
    std::weak_ptr<ImportedRegion> region;  // its user may be gone before it comes
    uint64_t allocation = 0;
    uint64_t generation = 0;
    ChunkMap::Range range;
    bool byFabric = false;
  };
  void send();
  Status check(const QueuedRequest& asked, const control::ChunkReply& message) const;
  Status take(const QueuedRequest& asked, const control::ChunkReply& message);
  Result<std::vector<VmmHandle>> handlesIn(const control::ChunkReply& message);
  void map(const std::shared_ptr<ImportedRegion>& region, uint64_t first,
           std::vector<VmmHandle> handles);

  PeerEnvironment& env_;
  LogLimit lines_;
  const std::function<void(const ImportedRegion&)> settled_;
  std::deque<QueuedRequest> queued_;         // not asked for yet: enough are under way
  std::map<uint64_t, QueuedRequest> asked_;  // by request
};

}  // namespace peerlane
