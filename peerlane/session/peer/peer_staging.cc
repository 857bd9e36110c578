// SPDX-License-Identifier: Apache-2.0
//
// PeerCore's half of staging: what to do about memory that the other side cannot reach. Whoever
// posts a transfer asks for the peer's staging memory, moves the bytes between that and its own
// side by any link, and has the peer copy the rest of the way.
#include <unistd.h>

#include "peerlane/core/log.h"
#include "peerlane/session/peer/peer_core.h"
#include "peerlane/session/peer/staged_move.h"

namespace peerlane {

Result<std::shared_ptr<StagingMemory>> PeerCore::makeStaging(uint64_t bytes) const {
  return StagingMemory::make(env_.around.keepAlive, env_.around.regions, bytes);
}

void PeerCore::requestStaging(uint64_t bytes, std::function<void(Result<RegionReference>)> tell) {
  progress().post([self = shared_from_this(), bytes, tell = std::move(tell)] {
    if (self->over()) return tell(self->failure());
    const uint64_t request = self->env_.nextRequest();
    if (Status sent = self->env_.connection->send(control::StagingRequest{request, bytes});
        !sent.isOk())
      return tell(sent);
    self->stagingRequests_[request] = tell;
  });
}

void PeerCore::requestMove(control::StagedMove move, std::function<void(Status)> tell) {
  progress().post([self = shared_from_this(), move = std::move(move), tell = std::move(tell)] {
    if (self->over()) return tell(self->failure());
    control::StagedMove numbered = move;
    numbered.request = self->env_.nextRequest();
    if (Status sent = self->env_.connection->send(numbered); !sent.isOk()) return tell(sent);
    self->moveRequests_[numbered.request] = tell;
  });
}

// Progress thread, as all below.
void PeerCore::failStaging() {
  for (auto& [request, tell] : std::exchange(stagingRequests_, {})) tell(failure());
  for (auto& [request, tell] : std::exchange(moveRequests_, {})) tell(failure());
}

Status PeerCore::makeStagingForPeer(uint64_t bytes) {
  if (env_.around.devices.empty())
    return Status(Code::kNotSupported, "this context has no GPU whose memory would need staging");
  if (staging_ && staging_->bytes() == bytes) return Status::ok();
  if (staging_)
    return Status(Code::kNotSupported, "staging memory of " + std::to_string(bytes) +
                                           " bytes; this connection has some of " +
                                           std::to_string(staging_->bytes()));
  const uint64_t most = env_.around.config.stagingBytes;
  if (bytes > most || bytes == 0)
    return Status(Code::kNotSupported, "staging memory of " + std::to_string(bytes) +
                                           " bytes; PEERLANE_STAGING_BYTES of process " +
                                           std::to_string(getpid()) + " allows " +
                                           std::to_string(most) + ": set both sides alike");
  PEERLANE_ASSIGN(staging_, makeStaging(bytes));
  PEERLANE_LOG_INFO("peer {}: {} bytes of staging memory, for what it cannot reach", env_.number,
                    bytes);
  return Status::ok();
}

Status PeerCore::handle(control::StagingRequest& message) {
  if (!links_.isMade())
    return Status(Code::kCorrupt, "staging was asked for before the link is made");
  control::StagingReply reply;
  reply.request = message.request;
  if (Status made = makeStagingForPeer(message.bytes); !made.isOk()) {
    reply.code = made.code();
    reply.reason = std::string(made.message()).substr(0, control::kMaxTextBytes);
    return env_.connection->send(reply);
  }
  reply.allocation = staging_->record()->allocation;
  reply.generation = staging_->record()->generation;
  reply.bytes = staging_->bytes();
  return env_.connection->send(reply);
}

Status PeerCore::handle(control::StagingReply& message) {
  const auto found = stagingRequests_.find(message.request);
  if (found == stagingRequests_.end())
    return Status(Code::kCorrupt, "an answer to request " + std::to_string(message.request) +
                                      " for staging memory, which nobody asked");
  const auto tell = std::move(found->second);
  stagingRequests_.erase(found);
  if (message.code != Code::kOk) {
    tell(Status(message.code, "the peer refused staging memory: " + message.reason));
    return Status::ok();
  }
  tell(referenceTo(message.allocation, message.generation, message.bytes));
  return Status::ok();
}

Status PeerCore::handle(control::StagedMove& message) {
  if (!links_.isMade())
    return Status(Code::kCorrupt, "a move was asked for before the link is made");
  const auto answer = [request = message.request](PeerCore& to, const Status& status) {
    return to.env_.connection->sendIfOpen(control::StagedMoveDone{
        request, status.code(), std::string(status.message()).substr(0, control::kMaxTextBytes)});
  };
  if (!staging_)
    return answer(*this, Status(Code::kInvalidArgument, "a move before staging was asked for"));
  const auto ended = [weak = weak_from_this(), answer](const Status& status) {
    const auto self = weak.lock();
    if (!self) return;
    self->progress().post([self, answer, status] {
      if (!self->over()) (void)answer(*self, status);
    });
  };
  const Status begun = StagedMove::begin({progress(), env_.around.regions, env_.around.devices},
                                         staging_, message, ended);
  return begun.isOk() ? begun : answer(*this, begun);
}

Status PeerCore::handle(control::StagedMoveDone& message) {
  const auto found = moveRequests_.find(message.request);
  if (found == moveRequests_.end())
    return Status(Code::kCorrupt, "the end of move " + std::to_string(message.request) +
                                      ", which nobody asked for");
  const auto tell = std::move(found->second);
  moveRequests_.erase(found);
  tell(message.code == Code::kOk
           ? Status::ok()
           : Status(message.code, "the peer could not move staged bytes: " + message.reason));
  return Status::ok();
}

}  // namespace peerlane
