// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/absentees.h"

#include <algorithm>
#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

// Between looks whether an address space has ended: nothing makes it readable.
constexpr std::chrono::milliseconds kLook{100};

}  // namespace

Absentees::Number Absentees::add(EventLoop& loop, Number peer, ProofOfEnd proof) {
  if (proof.given() || !regions_.importsAny(peer)) {
    regions_.forgetPeer(peer);
    return 0;
  }
  const auto same = [&](const Absentee& known) {
    // A living process has its number alone. In another pid namespace it has none here.
    return proof.process && proof.process->pid() > 0 && known.proof.process &&
           known.proof.process->pid() == proof.process->pid() && !known.proof.given();
  };
  {
    const MutexLock lock(mutex_);
    auto found = std::find_if(absentees_.begin(), absentees_.end(), same);
    if (found != absentees_.end()) {
      regions_.passImports(peer, found->peer);
      return found->peer;
    }
    Absentee& added = absentees_.emplace_back();
    added.peer = peer;
    added.proof = std::move(proof);
    if (added.proof.process) {
      if (stopped_) return peer;
      // Where it cannot be watched it is looked at.
      const int end = added.proof.process->fd();
      auto watch = loop.watch(end, true, false, [this, &loop] { look(loop); });
      if (watch.isOk()) added.end = std::move(*watch);
      if (!lookTimer_.pending()) lookTimer_ = loop.after(kLook, [this, &loop] { look(loop); });
      return peer;
    }
  }
  // Without the lock: a sink of the log may ask for a dump.
  PEERLANE_LOG_WARN(
      "peer {} left without a goodbye, and the end of its process cannot be known here: what it "
      "imported is kept for good",
      peer);
  return peer;
}

void Absentees::look(EventLoop& loop) {
  bool isAnyLeft = false;
  for (auto each = absentees_.begin(); each != absentees_.end();) {
    const auto here = each++;
    if (here->proof.given())
      settle(here);
    else
      isAnyLeft |= here->proof.process && (here->proof.memory || !here->end);
  }
  if (isAnyLeft) lookTimer_ = loop.after(kLook, [this, &loop] { look(loop); });
}

void Absentees::settle(std::list<Absentee>::iterator absentee) {
  std::list<Absentee> settled;
  {
    const MutexLock lock(mutex_);
    settled.splice(settled.begin(), absentees_, absentee);
  }
  regions_.forgetPeer(settled.front().peer);
  for (const auto& done : settled.front().awaiting) done();
}

bool Absentees::isWaitedFor(Number peer) const {
  const MutexLock lock(mutex_);
  return std::any_of(absentees_.begin(), absentees_.end(),
                     [&](const Absentee& each) { return each.peer == peer; });
}

void Absentees::await(Number peer, std::function<void()> done) {
  for (Absentee& each : absentees_)
    if (each.peer == peer) return each.awaiting.push_back(std::move(done));
}

void Absentees::stop() {
  stopped_ = true;
  lookTimer_.cancel();
  for (Absentee& each : absentees_) each.end = Watch();
}

std::string Absentees::describe() const {
  const MutexLock lock(mutex_);
  std::string text;
  for (const Absentee& each : absentees_) {
    text += "  peer " + std::to_string(each.peer) + " left without a goodbye; ";
    text += each.proof.process ? "its process " + std::to_string(each.proof.process->pid()) +
                                     " lives, and may still write to what it imported"
                               : "whether its process lives cannot be known";
    text += "\n";
  }
  return text;
}

}  // namespace peerlane
