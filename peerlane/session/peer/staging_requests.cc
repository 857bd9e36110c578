// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/staging_requests.h"

#include <unistd.h>

#include <string>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/session/staging/staged_move.h"

namespace peerlane {

Result<std::shared_ptr<StagingMemory>> StagingRequests::makeMemory(uint64_t bytes) const {
  auto made = StagingMemory::make(env_.around.keepAlive, env_.around.regions, bytes);
  if (made.isOk()) return made;
  return made.status().withContext("staging memory of " + std::to_string(bytes) +
                                   " bytes (PEERLANE_STAGING_BYTES)");
}

void StagingRequests::askForMemory(uint64_t bytes,
                                   std::function<void(Result<RegionReference>)> done) {
  env_.post([this, bytes, done = std::move(done)] {
    if (env_.status.over()) return done(env_.status.failure());
    const uint64_t request = env_.nextRequest();
    if (Status sent = env_.connection->send(control::StagingRequest{request, bytes}); !sent.isOk())
      return done(sent);
    memoryAsked_[request] = done;
  });
}

void StagingRequests::askForMove(control::StagedMove move, std::function<void(Status)> done) {
  env_.post([this, move = std::move(move), done = std::move(done)]() mutable {
    if (env_.status.over()) return done(env_.status.failure());
    move.request = env_.nextRequest();
    if (Status sent = env_.connection->send(move); !sent.isOk()) return done(sent);
    movesAsked_[move.request] = done;
  });
}

void StagingRequests::fail() {
  for (auto& [request, done] : std::exchange(memoryAsked_, {})) done(env_.status.failure());
  for (auto& [request, done] : std::exchange(movesAsked_, {})) done(env_.status.failure());
}

Status StagingRequests::makeMemoryForPeer(uint64_t bytes) {
  if (env_.around.devices.empty())
    return Status(Code::kNotSupported, "this context has no GPU whose memory would need staging");
  if (forPeer_ && forPeer_->bytes() == bytes) return Status::ok();
  if (forPeer_)
    return Status(Code::kNotSupported, "staging memory of " + std::to_string(bytes) +
                                           " bytes; this connection has some of " +
                                           std::to_string(forPeer_->bytes()));
  const uint64_t most = env_.around.config.stagingBytes;
  if (bytes > most || bytes == 0)
    return Status(Code::kNotSupported, "staging memory of " + std::to_string(bytes) +
                                           " bytes; PEERLANE_STAGING_BYTES of process " +
                                           std::to_string(getpid()) + " allows " +
                                           std::to_string(most) + ": set both sides alike");
  PEERLANE_ASSIGN(forPeer_, makeMemory(bytes));
  PEERLANE_LOG_INFO("peer {}: {} bytes of staging memory, for what it cannot reach", env_.number,
                    bytes);
  return Status::ok();
}

Status StagingRequests::handle(control::StagingRequest& message) {
  if (!links_.isMade())
    return Status(Code::kCorrupt, "staging was asked for before the link is made");
  control::StagingReply reply;
  reply.request = message.request;
  if (Status made = makeMemoryForPeer(message.bytes); !made.isOk()) {
    reply.code = made.code();
    reply.reason = std::string(made.message()).substr(0, control::kMaxTextBytes);
    return env_.connection->send(reply);
  }
  reply.allocation = forPeer_->record()->allocation;
  reply.generation = forPeer_->record()->generation;
  reply.bytes = forPeer_->bytes();
  return env_.connection->send(reply);
}

Status StagingRequests::handle(control::StagingReply& message) {
  const auto found = memoryAsked_.find(message.request);
  if (found == memoryAsked_.end())
    return Status(Code::kCorrupt, "an answer to request " + std::to_string(message.request) +
                                      " for staging memory, which nobody asked");
  const auto done = std::move(found->second);
  memoryAsked_.erase(found);
  if (message.code != Code::kOk)
    done(Status(message.code, "the peer refused staging memory: " + message.reason));
  else
    done(process_.referenceTo(message.allocation, message.generation, message.bytes));
  return Status::ok();
}

Status StagingRequests::sendDone(uint64_t request, const Status& status) {
  return env_.connection->sendIfOpen(control::StagedMoveDone{
      request, status.code(), std::string(status.message()).substr(0, control::kMaxTextBytes)});
}

Status StagingRequests::handle(control::StagedMove& message) {
  if (!links_.isMade())
    return Status(Code::kCorrupt, "a move was asked for before the link is made");
  if (!forPeer_)
    return sendDone(message.request,
                    Status(Code::kInvalidArgument, "a move before staging was asked for"));
  // The move goes on when the peer is gone, and then tells nobody.
  const auto ended = [this, weak = env_.peer, request = message.request](const Status& status) {
    const auto kept = weak.lock();
    if (!kept) return;
    env_.post([this, request, status] {
      if (!env_.status.over()) (void)sendDone(request, status);
    });
  };
  const PeerSurroundings& around = env_.around;
  const Status begun = StagedMove::begin({around.progress, around.regions, around.devices},
                                         forPeer_, message, ended);
  return begun.isOk() ? begun : sendDone(message.request, begun);
}

Status StagingRequests::handle(control::StagedMoveDone& message) {
  const auto found = movesAsked_.find(message.request);
  if (found == movesAsked_.end())
    return Status(Code::kCorrupt, "the end of move " + std::to_string(message.request) +
                                      ", which nobody asked for");
  const auto done = std::move(found->second);
  movesAsked_.erase(found);
  done(message.code == Code::kOk
           ? Status::ok()
           : Status(message.code, "the peer could not move staged bytes: " + message.reason));
  return Status::ok();
}

}  // namespace peerlane
