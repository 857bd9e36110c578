// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/heartbeat.h"

#include <algorithm>
#include <string>

#include "peerlane/core/log.h"

namespace peerlane {

void Heartbeat::start() {
  lastBeat_ = Clock::now();
  timer_ = env_.around.progress.loop().after(env_.around.config.heartbeatInterval(), [this] {
    beat();
    const PeerState state = env_.status.state();
    if (state == PeerState::kReady || state == PeerState::kSilent) start();
  });
}

void Heartbeat::beat() {
  const auto now = Clock::now();
  const auto interval = env_.around.config.heartbeatInterval();
  const auto patience = env_.around.config.peerTimeout;
  const auto lastHeard = env_.connection->lastHeard();
  // This side stood still (stopped, or in a long callback), and has not read what came meanwhile.
  if (now - lastBeat_ >= interval + patience / 2) attentiveSince_ = now;
  if (const Status silence = links_.silence(); !silence.isOk())
    setSilent(env_.name() + ": " + std::string(silence.message()));
  else if (now - lastHeard < interval)
    endSilence();
  if (now - lastHeard < interval / 2) return;
  if (now - std::max(lastHeard, attentiveSince_) >= patience)
    setSilent("nothing heard from " + env_.name());
  (void)env_.connection->send(control::Heartbeat{++sequence_, false});
}

Status Heartbeat::handle(control::Heartbeat& message) {
  if (message.reply) return Status::ok();
  return env_.connection->send(control::Heartbeat{message.sequence, true});
}

void Heartbeat::setSilent(const std::string& why) {
  if (env_.status.state() != PeerState::kReady) return;
  const auto seconds = std::chrono::duration<double>(env_.around.config.peerTimeout).count();
  env_.status.setSilent(
      Status(Code::kPeerSilent, why + " for " + std::to_string(seconds) +
                                    " s (PEERLANE_PEER_TIMEOUT); it may still be alive"));
  PEERLANE_LOG_WARN("{}", env_.status.failure().toString());
  messages_.channels().setEnded(true);
  env_.around.progress.notifyWaiters();
}

void Heartbeat::heard() {
  env_.status.setLastHeard(env_.connection->lastHeard());
  if (links_.silence().isOk()) endSilence();
}

void Heartbeat::endSilence() {
  if (env_.status.state() != PeerState::kSilent) return;
  PEERLANE_LOG_WARN("peer {} is heard again", env_.number);
  env_.status.setHeard();
  messages_.channels().setEnded(false);
}

}  // namespace peerlane
