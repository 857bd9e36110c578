// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/goodbye.h"

#include <algorithm>
#include <string>
#include <utility>

namespace peerlane {
namespace {

// Between looks whether the last copy of a closing connection has ended.
constexpr std::chrono::milliseconds kGoodbyeLook{1};
// Memory in use for longer is in no copy of another thread: it was lent, to a port.
constexpr std::chrono::milliseconds kLent{100};
// How long messages may still come over the control connection of a peer whose link has ended.
constexpr std::chrono::seconds kLastWords{1};

// Its sender cannot have meant that, or may not do it.
bool breaksRules(const Status& status) {
  return status.code() == Code::kCorrupt || status.code() == Code::kPermissionDenied;
}

}  // namespace

bool Goodbye::isProven() const {
  if (!parts_.links.isMade() || parts_.process.facts().sameProcess) return true;
  return !parts_.links.peerWritesAlone() || parts_.process.hasEnded();
}

// Where only the link is known to have ended, the control connection may still bring messages, and
// the peer's goodbye after them. An answer before they are read may cost some.
void Goodbye::begin(PeerState state, const Status& reason) {
  const bool mayStillSay = state == PeerState::kLost && env_.status.met() &&
                           env_.connection->open() && !hasLeft_ && !breaksRules(reason);
  if (!mayStillSay) return endMessages();
  reason_ = reason;
  lastWords_ = env_.around.progress.loop().after(kLastWords, [this] {
    endMessages();
    sendBye(reason_);
  });
}

void Goodbye::endMessages() {
  const bool hasToSay = lastWords_.pending();
  lastWords_.cancel();
  parts_.messages.end();
  if (hasToSay) sendBye(reason_);
}

bool Goodbye::isMemoryInUse() const {
  if (!parts_.imports.isOpen()) return false;
  auto regions = parts_.imports.all();
  if (parts_.slabs.peers()) regions.push_back(parts_.slabs.peers());
  const auto inUse = [](const std::shared_ptr<ImportedRegion>& region) {
    return region->isHeld() ? !ImportedRegion::letGo(region) : !region->gate.drained();
  };
  return std::any_of(regions.begin(), regions.end(), inUse) || parts_.imports.isAnyHeldDetaching();
}

void Goodbye::sendByeLater(const Status& reason) {
  if (busySince_ == Clock::time_point{}) busySince_ = Clock::now();
  const bool isLong = Clock::now() - busySince_ >= kLent;
  const bool isQuiet = isLong && parts_.messages.allSent() && env_.connection->isTaken() &&
                       env_.pendingOperations.load(std::memory_order_acquire) == 0;
  if (isQuiet && !hasSaidAll_.exchange(true)) env_.around.progress.notifyWaiters();
  delay_ = env_.around.progress.loop().after(kGoodbyeLook, [this, reason] { sendBye(reason); });
}

void Goodbye::sendBye(const Status& reason) {
  if (isMemoryInUse()) return sendByeLater(reason);
  const Code code = reason.code() == Code::kPeerLost ? Code::kOk : reason.code();
  const PeerState state = env_.status.state();
  // That it was closed is the peer's sentence; here another reason may stand.
  const std::string why = state == PeerState::kClosed ? "" : std::string(reason.message());
  (void)env_.connection->sendLast(control::Bye{code, why.substr(0, control::kMaxTextBytes)});
  // A peer that broke the rules is not listened to any more; only the end of a process that writes
  // by itself is still waited for.
  if (state == PeerState::kLost && breaksRules(reason)) {
    env_.connection->close();
    hasLeft_ = hasLeft_ || isProven();
  }
  // Before the link was made there is nothing to wait for; on a connection that has ended nothing
  // more will be heard.
  if (!parts_.links.isMade() || hasLeft_ || !env_.connection->open()) forget();
}

// Of a peer that is not proven to have ended its imports stay behind, and nothing else: descriptors
// and memory of this peer go with the last handle.
void Goodbye::forget() {
  if (std::exchange(isForgotten_, true)) return;
  lastWords_.cancel();
  endMessages();
  delay_.cancel();
  parts_.revoked.stop();
  endRevocations();
  parts_.grants.close();
  leaveBy_ = Clock::now() + std::chrono::nanoseconds(env_.around.config.peerTimeout);
  leave();
}

// This side's goodbye may stand behind thousands of messages that the kernel has no room for yet:
// closed now, it would be lost, and the peer would keep its memory from everybody.
bool Goodbye::hasToWrite() const {
  return parts_.links.isMade() && env_.connection->open() && !env_.connection->flushed() &&
         !parts_.process.hasEnded() && Clock::now() < leaveBy_;
}

void Goodbye::leave() {
  if (hasToWrite()) {
    delay_ = env_.around.progress.loop().after(kGoodbyeLook, [this] { leave(); });
    return;
  }
  env_.connection->close();
  parts_.process.stopWatching();
  gone_();
}

void Goodbye::endRevocations() {
  const Grants::Revocations revocations = parts_.grants.takeRevocations();
  const PeerSurroundings& around = env_.around;
  Absentees::Number absentee = 0;
  if (hasLeft_ || isProven())
    around.regions.forgetPeer(env_.number);
  else
    absentee =
        around.absentees.add(around.progress.loop(), env_.number, parts_.process.takeProof());
  for (const auto& done : revocations) {
    if (absentee != 0)
      around.absentees.await(absentee, done);
    else
      done();
  }
}

}  // namespace peerlane
