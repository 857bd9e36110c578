// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/chunk_imports.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/unix_peer.h"

namespace peerlane {
namespace {

// Two, so that one side maps while the other exports.
constexpr size_t kMostRequests = 2;
static_assert(kMostRequests * ChunkImports::kPerRequest < ControlConnection::kMaxWaitingFds);

// Why nothing more of it is mapped: OK while it may be.
Status takenBack(const ImportedRegion& region) {
  return region.gate.open() ? Status::ok() : region.whyClosed();
}

// In order, neighbours in one.
void merge(std::vector<ChunkMap::Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  size_t kept = 0;
  for (const ChunkMap::Range& range : ranges) {
    if (kept > 0 && ranges[kept - 1].first + ranges[kept - 1].count == range.first)
      ranges[kept - 1].count += range.count;
    else
      ranges[kept++] = range;
  }
  ranges.resize(kept);
}

}  // namespace

void ChunkImports::request(const std::shared_ptr<ImportedRegion>& region,
                           std::vector<ChunkMap::Range> ranges) {
  if (ranges.empty()) return;
  merge(ranges);
  // A handle may outlive the context: then nobody runs what is posted.
  if (env_.status.over()) {
    for (const auto& range : ranges) region->memory.chunks->fail(range, env_.status.failure());
    return;
  }
  env_.post([this, weak = std::weak_ptr(region), allocation = region->memory.grant.allocation,
             generation = region->memory.grant.generation,
             byFabric = isByFabric(region->memory.grant.kind), ranges = std::move(ranges)] {
    for (const auto& range : ranges)
      queued_.push_back({weak, allocation, generation, range, byFabric});
    if (env_.status.over()) return fail();
    send();
  });
}

void ChunkImports::send() {
  while (asked_.size() < kMostRequests && !queued_.empty()) {
    QueuedRequest& next = queued_.front();
    const auto region = next.region.lock();
    if (!region) {
      queued_.pop_front();
      continue;
    }
    QueuedRequest queued = next;
    queued.range.count = std::min(next.range.count, kPerRequest);
    next.range.first += queued.range.count;
    next.range.count -= queued.range.count;
    if (next.range.count == 0) queued_.pop_front();
    const uint64_t request = env_.nextRequest();
    const Status sent = env_.connection->send(
        control::ChunkRequest{request, queued.allocation, queued.generation, queued.range.first,
                              static_cast<uint32_t>(queued.range.count)});
    if (sent.isOk()) {
      asked_[request] = std::move(queued);
    } else {
      region->memory.chunks->fail(queued.range, sent);
      settled_(*region);  // no answer will come that does it
      env_.around.progress.notifyWaiters();
    }
  }
}

void ChunkImports::fail() {
  for (const auto& [request, queued] : std::exchange(asked_, {})) queued_.push_back(queued);
  for (const QueuedRequest& queued : std::exchange(queued_, {}))
    if (const auto region = queued.region.lock())
      region->memory.chunks->fail(queued.range, env_.status.failure());
  env_.around.progress.notifyWaiters();
}

Status ChunkImports::handle(control::ChunkReply& message) {
  const auto found = asked_.find(message.request);
  if (found == asked_.end())
    return Status(Code::kCorrupt, "an answer to request " + std::to_string(message.request) +
                                      " for chunks, which nobody asked");
  const QueuedRequest asked = found->second;
  asked_.erase(found);
  if (message.code == Code::kOk) {
    PEERLANE_RETURN_IF_ERROR(take(asked, message));
  } else if (const auto region = asked.region.lock()) {
    // It may have been asked after it took the region back, and then knows nothing of it.
    const Status closed = takenBack(*region);
    region->memory.chunks->fail(
        asked.range, closed.isOk()
                         ? Status(message.code, "the owner refused chunks: " + message.reason)
                         : closed);
  }
  send();
  if (const auto region = asked.region.lock()) settled_(*region);
  env_.around.progress.notifyWaiters();
  return Status::ok();
}

Status ChunkImports::check(const QueuedRequest& asked, const control::ChunkReply& message) const {
  const uint64_t count = asked.range.count;
  if (message.first == asked.range.first && message.count == count &&
      message.fdCount == (asked.byFabric ? 0 : count) &&
      message.handles.size() == (asked.byFabric ? count * kFabricHandleBytes : 0))
    return Status::ok();
  return Status(Code::kCorrupt, std::to_string(message.count) + " chunks from " +
                                    std::to_string(message.first) + " on with " +
                                    std::to_string(message.fdCount) + " descriptors and " +
                                    std::to_string(message.handles.size()) +
                                    " bytes of handles, where others were asked for");
}

Status ChunkImports::take(const QueuedRequest& asked, const control::ChunkReply& message) {
  PEERLANE_RETURN_IF_ERROR(check(asked, message));
  const auto region = asked.region.lock();
  auto handles = handlesIn(message);
  if (!handles.isOk() && handles.status().code() != Code::kUnavailable) return handles.status();
  if (region && handles.isOk()) map(region, message.first, std::move(*handles));
  // No room for the descriptors: of these chunks nothing comes, and that is nobody's lie.
  if (region && !handles.isOk()) region->memory.chunks->fail(asked.range, handles.status());
  return Status::ok();
}

Result<std::vector<VmmHandle>> ChunkImports::handlesIn(const control::ChunkReply& message) {
  PEERLANE_ASSIGN(auto fds, env_.connection->takeFds(message.fdCount));
  std::vector<VmmHandle> handles;
  for (Fd& fd : fds) handles.push_back({std::move(fd), {}});
  for (auto at = message.handles.begin(); at != message.handles.end(); at += kFabricHandleBytes)
    handles.push_back({Fd(), {at, at + kFabricHandleBytes}});
  return handles;
}

void ChunkImports::map(const std::shared_ptr<ImportedRegion>& region, uint64_t first,
                       std::vector<VmmHandle> handles) {
  ChunkMap& chunks = *region->memory.chunks;
  const uint64_t count = handles.size();
  const uint64_t allocation = region->memory.grant.allocation;
  if (Status closed = takenBack(*region); !closed.isOk())
    return chunks.fail({first, count}, closed);
  const auto begin = std::chrono::steady_clock::now();
  const Status mapped = chunks.map(first, std::move(handles));
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::steady_clock::now() - begin);
  if (!mapped.isOk()) {
    if (lines_.allows())
      PEERLANE_LOG_WARN("peer {}: chunks {} to {} of its region {} could not be mapped: {}{}",
                        env_.number, first, first + count - 1, allocation, mapped.toString(),
                        lines_.leftOut());
    return;
  }
  const auto nanoseconds = static_cast<uint64_t>(took.count());
  env_.around.metrics.counter("peerlane_chunks_imported_total").add(count);
  env_.around.metrics.counter("peerlane_chunk_import_nanoseconds_total").add(nanoseconds);
  PEERLANE_LOG_DEBUG("peer {}: {} chunks of its region {} mapped, {} us each; {} of {} are here",
                     env_.number, count, allocation, nanoseconds / count / 1000, chunks.mapped(),
                     chunks.count());
}

}  // namespace peerlane
