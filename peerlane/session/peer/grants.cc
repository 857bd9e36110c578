// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/grants.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "peerlane/core/limits.h"
#include "peerlane/os/cuda.h"
#include "peerlane/session/peer/chunk_imports.h"
#include "peerlane/session/wire/grant_message.h"

namespace peerlane {
namespace {

// The facts of a region that do not depend on the link.
RegionGrant grantFor(const RegionRecord& record) {
  RegionGrant region;
  region.allocation = record.allocation;
  region.generation = record.generation;
  region.bytes = record.bytes;
  region.kind = record.memory.kind;
  region.access = record.access;
  region.device = record.memory.device;
  region.owner = record.memory.owner;
  return region;
}

}  // namespace

Status Grants::send(uint64_t request, const RegionRecord& record, const Link& link, LinkPart own) {
  Grant grant{grantFor(record), std::move(own)};
  const control::ImportReply reply = replyWith(request, link.traits().transport, grant);
  std::vector<Fd> fds;
  if (grant.own.fd) fds.push_back(std::move(grant.own.fd));
  return env_.connection->send(reply, std::move(fds));
}

Status Grants::grant(const control::ImportRequest& message, const RegionRecord& record) {
  // A device may not take memory of a kind of which it takes others. Memory of the host is refused
  // then, with the reason, and does not go by a slower way without a word.
  std::vector<std::string> links = message.links;
  Status refused;
  while (Link* const link = links_.granting(record.memory.kind, links)) {
    const std::string& name = link->traits().transport;
    Result<LinkPart> own = link->grant(record);
    if (own.isOk()) return send(message.request, record, *link, std::move(*own));
    if (own.status().code() != Code::kNotSupported ||
        record.memory.device.kind == DeviceKind::kHost)
      return own.status();
    if (refused.isOk()) refused = own.status().withContext("link " + name);
    std::erase(links, name);
  }
  if (refused.isOk())
    return Status(Code::kNotSupported,
                  record.memory.kind.name() +
                      (record.memory.whyNot.empty() ? "" : " (" + record.memory.whyNot + ")") +
                      ", which this side grants over no link that the peer can use for it (" +
                      fmt::format("{}", fmt::join(message.links, ", ")) + ")");
  return refused;
}

Status Grants::handle(control::ImportRequest& message) {
  if (!links_.isMade()) return Status(Code::kCorrupt, "an import before the link is made");
  RegionTable& regions = env_.around.regions;
  const auto record = regions.lend(message.allocation, message.generation, env_.number);
  Status refused = record.status();
  if (refused.isOk()) {
    refused = grant(message, **record);
    if (refused.isOk()) return Status::ok();
    regions.removeImporter(message.allocation, env_.number);
  }
  control::ImportReply reply;
  reply.request = message.request;
  reply.code = refused.code();
  reply.reason = std::string(refused.message()).substr(0, control::kMaxTextBytes);
  return env_.connection->send(reply);
}

Status Grants::handle(control::Release& message) {
  env_.around.regions.removeImporter(message.allocation, env_.number);
  return Status::ok();
}

Status Grants::handle(control::ChunkRequest& message) {
  if (!links_.isMade())
    return Status(Code::kCorrupt, "chunks were asked for before the link is made");
  control::ChunkReply reply;
  reply.request = message.request;
  reply.first = message.first;
  reply.count = message.count;
  const auto begin = std::chrono::steady_clock::now();
  auto handles = exportChunks(message);
  if (!handles.isOk()) {
    reply.code = handles.status().code();
    reply.reason = std::string(handles.status().message()).substr(0, control::kMaxTextBytes);
    return env_.connection->send(reply);
  }
  const auto took = std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::steady_clock::now() - begin);
  Metrics& metrics = env_.around.metrics;
  metrics.counter("peerlane_chunks_exported_total").add(message.count);
  metrics.counter("peerlane_chunk_export_nanoseconds_total")
      .add(static_cast<uint64_t>(took.count()));
  std::vector<Fd> fds;
  for (VmmHandle& handle : *handles) {
    if (handle.fd) fds.push_back(std::move(handle.fd));
    reply.handles.insert(reply.handles.end(), handle.fabric.begin(), handle.fabric.end());
  }
  reply.fdCount = static_cast<uint32_t>(fds.size());
  return env_.connection->send(reply, std::move(fds));
}

Result<std::vector<VmmHandle>> Grants::exportChunks(const control::ChunkRequest& message) {
  RegionTable& regions = env_.around.regions;
  PEERLANE_ASSIGN(const auto record, regions.find(message.allocation, message.generation));
  const std::string name = "region " + std::to_string(message.allocation);
  const std::vector<CudaChunk>& chunks = record->memory.chunks;
  if (!isInChunks(record->memory.kind))
    return Status(Code::kInvalidArgument, name + " does not travel in chunks");
  if (!regions.isImporter(message.allocation, env_.number))
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
      return Status(Code::kRevoked, "chunk " + std::to_string(i) + " of " + name +
                                        " was freed without the region being unregistered");
  for (Link* link : links_.live())
    if (link->traits().abilities.can(record->memory.kind, Ability::kGrants))
      return link->exportChunks(*record, message.first, message.count);
  return Status(Code::kNotSupported, name + ": no link between the two carries chunks");
}

void Grants::revokeLater(uint64_t allocation, uint64_t generation, bool freed,
                         std::function<void()> done) {
  RegionTable& regions = env_.around.regions;
  if (isClosed_) {
    regions.forgetImporter(allocation, env_.number);
    return done();
  }
  const uint64_t request = env_.nextRequest();
  // It may outlive this peer.
  revocations_[request] = [&regions, number = env_.number, allocation, done = std::move(done)] {
    regions.forgetImporter(allocation, number);
    done();
  };
  // The goodbye of the peer will confirm, or its end: a connection that ended proves nothing about
  // a process that writes by itself.
  if (env_.status.over()) return;
  queued_.push_back({request, allocation, generation, freed});
}

// Few are under way at once, so that neither the peer's notes of those that it cannot confirm yet
// nor its answers grow without an end: two sides that both take back much would not read each
// other's answers any more.
void Grants::askForRevocations() {
  const ControlConnection::Gathering revocations(*env_.connection);
  while (!queued_.empty() && revocations_.size() - queued_.size() < limits::kRevocations) {
    (void)env_.connection->send(queued_.front());
    queued_.pop_front();
  }
}

Status Grants::handle(control::RevokeDone& message) {
  auto found = revocations_.find(message.request);
  const bool isAskedFor = queued_.empty() || message.request < queued_.front().request;
  if (found == revocations_.end() || !isAskedFor)
    return Status(Code::kCorrupt, "a confirmation of revocation " +
                                      std::to_string(message.request) + ", which nobody asked");
  auto done = std::move(found->second);
  revocations_.erase(found);
  askForRevocations();
  done();
  return Status::ok();
}

Grants::Revocations Grants::takeRevocations() {
  queued_.clear();
  Revocations taken;
  for (auto& [request, done] : std::exchange(revocations_, {})) taken.push_back(std::move(done));
  return taken;
}

}  // namespace peerlane
