// SPDX-License-Identifier: Apache-2.0
//
// PeerCore's half of memory in chunks (isInChunks). The importer asks for the chunks
// that a transfer touches, a few at a time; the owner makes their handles when they are asked
// for and closes descriptors when they are sent. So neither ever holds more than some dozens,
// however large the region is, and neither loop is kept from its other work for long.
#include <algorithm>
#include <chrono>

#include "peerlane/core/log.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/unix_peer.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
namespace {

// Two, so that one side maps while the other exports.
constexpr size_t kMostRequests = 2;
constexpr uint64_t kChunksPerRequest = kMaxPassedFds;
static_assert(kMostRequests * kChunksPerRequest < ControlConnection::kMaxWaitingFds);

uint64_t nanosecondsSince(PeerCore::Clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(PeerCore::Clock::now() - begin).count());
}

// Why nothing more of it is mapped: OK while it may be.
Status takenBack(const ImportedRegion& region) {
  if (region.gate.open()) return Status::ok();
  return Status(Code::kClosed,
                region.freed.load(std::memory_order_relaxed)
                    ? "the peer freed the memory of the region without unregistering it"
                    : "the region is being unregistered, or the peer is gone");
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

bool PeerCore::reaches(const std::shared_ptr<ImportedRegion>& region, uint64_t offset,
                       uint64_t bytes) {
  const auto& chunks = region->memory.chunks;
  if (!chunks || chunks->covers(offset, bytes)) return true;
  requestChunks(region, chunks->ask(offset, bytes));
  return false;
}

void PeerCore::requestChunks(const std::shared_ptr<ImportedRegion>& region,
                             std::vector<ChunkMap::Range> ranges) {
  if (ranges.empty()) return;
  merge(ranges);
  // A handle may outlive the context: then nobody runs what is posted.
  if (over()) {
    for (const auto& range : ranges) region->memory.chunks->fail(range, failure());
    return;
  }
  progress().post([self = shared_from_this(), weak = std::weak_ptr(region),
                   allocation = region->memory.grant.allocation,
                   generation = region->memory.grant.generation,
                   byFabric = isByFabric(region->memory.grant.kind), ranges = std::move(ranges)] {
    for (const auto& range : ranges)
      self->chunkWishes_.push_back({weak, allocation, generation, range, byFabric});
    if (self->over()) return self->failChunkRequests();
    self->sendChunkRequests();
  });
}

// Progress thread, as all below.
void PeerCore::sendChunkRequests() {
  while (chunkRequests_.size() < kMostRequests && !chunkWishes_.empty()) {
    ChunkWish& next = chunkWishes_.front();
    const auto region = next.region.lock();
    if (!region) {
      chunkWishes_.pop_front();
      continue;
    }
    ChunkWish wish = next;
    wish.range.count = std::min(next.range.count, kChunksPerRequest);
    next.range.first += wish.range.count;
    next.range.count -= wish.range.count;
    if (next.range.count == 0) chunkWishes_.pop_front();
    const uint64_t request = env_.nextRequest();
    const Status sent = env_.connection->send(
        control::ChunkRequest{request, wish.allocation, wish.generation, wish.range.first,
                              static_cast<uint32_t>(wish.range.count)});
    if (sent.isOk()) {
      chunkRequests_[request] = std::move(wish);
    } else {
      region->memory.chunks->fail(wish.range, sent);
      env_.around.progress.notifyWaiters();
    }
  }
}

void PeerCore::failChunkRequests() {
  for (const auto& [request, wish] : std::exchange(chunkRequests_, {}))
    chunkWishes_.push_back(wish);
  for (const ChunkWish& wish : std::exchange(chunkWishes_, {}))
    if (const auto region = wish.region.lock()) region->memory.chunks->fail(wish.range, failure());
  settleWholeImports();
  env_.around.progress.notifyWaiters();
}

void PeerCore::settleWholeImports() {
  for (WholeImport& import : std::exchange(wholeImports_, {})) {
    const ChunkMap& chunks = *import.region->memory.chunks;
    Status failed = over() ? failure() : chunks.failure(0, import.region->memory.grant.bytes);
    if (!failed.isOk())
      importDone(import.slot, failed);
    else if (chunks.complete())
      importDone(import.slot, import.region);
    else
      wholeImports_.push_back(std::move(import));
  }
}

Status PeerCore::handle(control::ChunkRequest& message) {
  if (!links_.isMade())
    return Status(Code::kCorrupt, "chunks were asked for before the link is made");
  control::ChunkReply reply;
  reply.request = message.request;
  reply.first = message.first;
  reply.count = message.count;
  const auto begin = Clock::now();
  auto handles = exportChunks(message);
  if (!handles.isOk()) {
    reply.code = handles.status().code();
    reply.reason = std::string(handles.status().message()).substr(0, control::kMaxTextBytes);
    return env_.connection->send(reply);
  }
  metrics().counter("peerlane_chunks_exported_total").add(message.count);
  metrics().counter("peerlane_chunk_export_nanoseconds_total").add(nanosecondsSince(begin));
  std::vector<Fd> fds;
  for (VmmHandle& handle : *handles) {
    if (handle.fd) fds.push_back(std::move(handle.fd));
    reply.handles.insert(reply.handles.end(), handle.fabric.begin(), handle.fabric.end());
  }
  reply.fdCount = static_cast<uint32_t>(fds.size());
  return env_.connection->send(reply, std::move(fds));
}

Result<std::vector<VmmHandle>> PeerCore::exportChunks(const control::ChunkRequest& message) {
  PEERLANE_ASSIGN(const auto record,
                  env_.around.regions.find(message.allocation, message.generation));
  const std::string name = "region " + std::to_string(message.allocation);
  const std::vector<CudaChunk>& chunks = record->memory.chunks;
  if (links_.device() == nullptr || !isInChunks(record->memory.kind))
    return Status(Code::kInvalidArgument, name + " does not travel in chunks");
  if (!env_.around.regions.isImporter(message.allocation, env_.number))
    return Status(Code::kInvalidArgument, name + " is not imported by this peer");
  if (message.count == 0 || message.count > kChunksPerRequest || message.count > chunks.size() ||
      message.first > chunks.size() - message.count)
    return Status(Code::kInvalidArgument,
                  std::to_string(message.count) + " chunks from " + std::to_string(message.first) +
                      " on of the " + std::to_string(chunks.size()) + " of " + name + "; 1 to " +
                      std::to_string(kChunksPerRequest) + " at a time");
  if (env_.connection->queuedFds() + message.count > ControlConnection::kMaxWaitingFds)
    return Status(Code::kTryAgain, "the peer asks for chunks faster than it takes them");
  const std::byte* at = record->base - record->memory.fdOffset;
  for (uint64_t i = 0; i < message.first; ++i) at += chunks[i].bytes;
  for (uint64_t i = message.first; i < message.first + message.count; at += chunks[i++].bytes)
    if (cuda::identityOf(at) != chunks[i].identity)
      return Status(Code::kClosed, "chunk " + std::to_string(i) + " of " + name +
                                       " was freed without the region being unregistered");
  return links_.device()->exportChunks(grantFor(*record), message.first, message.count);
}

Status PeerCore::handle(control::ChunkReply& message) {
  const auto found = chunkRequests_.find(message.request);
  if (found == chunkRequests_.end())
    return Status(Code::kCorrupt, "an answer to request " + std::to_string(message.request) +
                                      " for chunks, which nobody asked");
  const ChunkWish wish = found->second;
  chunkRequests_.erase(found);
  const auto region = wish.region.lock();
  if (message.code != Code::kOk) {
    Status why(message.code, "the owner refused chunks: " + message.reason);
    if (region) {
      // It may have been asked after it took the region back, and then knows nothing of it.
      const Status closed = takenBack(*region);
      region->memory.chunks->fail(wish.range, closed.isOk() ? why : closed);
    }
  } else {
    const uint64_t count = wish.range.count;
    if (message.first != wish.range.first || message.count != count ||
        message.fdCount != (wish.byFabric ? 0 : count) ||
        message.handles.size() != (wish.byFabric ? count * kFabricHandleBytes : 0))
      return Status(Code::kCorrupt, std::to_string(message.count) + " chunks from " +
                                        std::to_string(message.first) + " on with " +
                                        std::to_string(message.fdCount) + " descriptors and " +
                                        std::to_string(message.handles.size()) +
                                        " bytes of handles, where others were asked for");
    auto handles = handlesIn(message);
    if (!handles.isOk() && handles.status().code() != Code::kUnavailable) return handles.status();
    if (region && handles.isOk()) mapChunks(region, message.first, std::move(*handles));
    // No room for the descriptors: of these chunks nothing comes, and that is nobody's lie.
    if (region && !handles.isOk()) region->memory.chunks->fail(wish.range, handles.status());
  }
  sendChunkRequests();
  settleWholeImports();
  env_.around.progress.notifyWaiters();
  return Status::ok();
}

Result<std::vector<VmmHandle>> PeerCore::handlesIn(const control::ChunkReply& message) {
  PEERLANE_ASSIGN(auto fds, env_.connection->takeFds(message.fdCount));
  std::vector<VmmHandle> handles;
  for (Fd& fd : fds) handles.push_back({std::move(fd), {}});
  for (auto at = message.handles.begin(); at != message.handles.end(); at += kFabricHandleBytes)
    handles.push_back({Fd(), {at, at + kFabricHandleBytes}});
  return handles;
}

void PeerCore::mapChunks(const std::shared_ptr<ImportedRegion>& region, uint64_t first,
                         std::vector<VmmHandle> handles) {
  ChunkMap& chunks = *region->memory.chunks;
  const uint64_t count = handles.size();
  const uint64_t allocation = region->memory.grant.allocation;
  if (Status closed = takenBack(*region); !closed.isOk())
    return chunks.fail({first, count}, closed);
  const auto begin = Clock::now();
  const Status mapped = chunks.map(first, std::move(handles));
  const uint64_t took = nanosecondsSince(begin);
  if (!mapped.isOk()) {
    PEERLANE_LOG_WARN("peer {}: chunks {} to {} of its region {} could not be mapped: {}",
                      env_.number, first, first + count - 1, allocation, mapped.toString());
    return;
  }
  metrics().counter("peerlane_chunks_imported_total").add(count);
  metrics().counter("peerlane_chunk_import_nanoseconds_total").add(took);
  PEERLANE_LOG_DEBUG("peer {}: {} chunks of its region {} mapped, {} us each; {} of {} are here",
                     env_.number, count, allocation, took / count / 1000, chunks.mapped(),
                     chunks.count());
}

}  // namespace peerlane
