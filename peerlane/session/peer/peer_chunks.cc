// SPDX-License-Identifier: Apache-2.0
//
// PeerCore's half of memory in chunks (isInChunks). The importer asks for the chunks
// that a transfer touches, a few at a time; the owner makes their handles when they are asked
// for and closes descriptors when they are sent. So neither ever holds more than some dozens,
// however large the region is, and neither loop is kept from its other work for long.
#include <chrono>

#include "peerlane/core/log.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/unix_peer.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
namespace {

uint64_t nanosecondsSince(PeerCore::Clock::time_point begin) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(PeerCore::Clock::now() - begin).count());
}

}  // namespace

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
  if (message.count == 0 || message.count > ChunkImports::kPerRequest ||
      message.count > chunks.size() || message.first > chunks.size() - message.count)
    return Status(Code::kInvalidArgument,
                  std::to_string(message.count) + " chunks from " + std::to_string(message.first) +
                      " on of the " + std::to_string(chunks.size()) + " of " + name + "; 1 to " +
                      std::to_string(ChunkImports::kPerRequest) + " at a time");
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

}  // namespace peerlane
