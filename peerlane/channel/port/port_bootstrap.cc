// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/port/port_bootstrap.h"

#include <string>
#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

// Tags that the peer has named and nobody here has; a peer that names more is broken.
constexpr size_t kMostTags = size_t{1} << 20;

Status endedStatus(const PortNote& note) {
  return Status(note.code == Code::kOk ? Code::kClosed : note.code, "the peer: " + note.text);
}

}  // namespace

std::shared_ptr<PortBootstrap> PortBootstrap::of(PeerCore& peer) {
  auto bootstrap =
      peer.attachments().portBootstrap.getOr([] { return std::make_shared<PortBootstrap>(); });
  if (bootstrap->subscribed_.exchange(true)) return bootstrap;
  std::weak_ptr<PortBootstrap> weak = bootstrap;
  peer.messages().onMessage(
      kPortChannel, [weak, &progress = peer.progress()](const std::vector<std::byte>& bytes) {
        if (const auto alive = weak.lock()) alive->take(bytes);
        progress.notifyWaiters();
      });
  return bootstrap;
}

Result<uint64_t> PortBootstrap::begin(uint32_t tag) {
  const MutexLock lock(mutex_);
  Entry& entry = entries_[tag];
  if (entry.isActive)
    return Status(Code::kUnavailable, "semaphore tag " + std::to_string(tag) +
                                          " is in use on this connection; remove that one first, "
                                          "or take another tag");
  std::optional<PortNote> hello = std::move(entry.hello);
  entry = {};
  entry.hello = std::move(hello);
  entry.isActive = true;
  entry.ownSerial = nextSerial_++;
  return entry.ownSerial;
}

void PortBootstrap::end(uint32_t tag, std::function<void()> gone) {
  ReleasableLock lock(mutex_);
  const auto found = entries_.find(tag);
  if (found == entries_.end()) return;
  Entry& entry = found->second;
  // A peer that has both readies has met this use, whether or not anybody looked here.
  if (entry.ready && entry.answered == entry.ready->serial) entry.hello.reset();
  if (gone && entry.answered != 0)
    lingering_.insert({entry.answered, {entry.ownSerial, std::exchange(gone, nullptr)}});
  std::optional<PortNote> hello = std::move(entry.hello);
  if (hello) {
    entry = {};
    entry.hello = std::move(hello);
  } else {
    entries_.erase(found);
  }
  lock.unlock();
  if (gone) gone();
}

void PortBootstrap::take(const std::vector<std::byte>& bytes) {
  auto decoded = PortNote::decode(bytes);
  Calls calls;
  {
    const MutexLock lock(mutex_);
    if (decoded.isOk() && entries_.size() >= kMostTags && !entries_.contains(decoded->tag))
      decoded = Status(Code::kCorrupt, "more semaphore tags than a connection has");
    if (!decoded.isOk()) {
      if (lines_.allows())
        PEERLANE_LOG_WARN("a note about a semaphore is dropped: {}{}", decoded.status().toString(),
                          lines_.leftOut());
      if (broken_.isOk()) broken_ = decoded.status();
      return;
    }
    Entry& entry = entries_[decoded->tag];
    switch (decoded->kind) {
      case PortNote::Kind::kHello:
        // The peer's earlier uses are gone when it says a new hello.
        if (entry.answered != decoded->serial && !entry.isMet) entry.answered = 0;
        entry.dropHello();
        entry.hello = *decoded;
        break;
      case PortNote::Kind::kReady: takeReady(entry, *decoded, calls); break;
      case PortNote::Kind::kEnded:
      case PortNote::Kind::kGaveUp: takeEnded(entry, *decoded, calls); break;
      case PortNote::Kind::kGone: takeGone(entry, decoded->serial, calls); break;
    }
    if (!entry.isActive && !entry.hello) entries_.erase(decoded->tag);
  }
  for (const auto& call : calls) call();
}

// The hello that stands is over.
void PortBootstrap::Entry::dropHello() {
  hello.reset();
  ready.reset();
  if (!isMet) peerSerial = 0;
}

// It may come before the hello was taken here.
void PortBootstrap::takeReady(Entry& entry, const PortNote& note, Calls& calls) {
  // A use of the peer that answers one hello has not met the use that said an earlier one. It may
  // have met a later one.
  const auto [first, last] = lingering_.equal_range(note.serial);
  bool hasMetAnEarlierUse = false;
  for (auto each = first; each != last;) {
    hasMetAnEarlierUse |= each->second.ownSerial == note.answers;
    if (each->second.ownSerial >= note.answers) {
      ++each;
      continue;
    }
    calls.push_back(std::move(each->second.gone));
    each = lingering_.erase(each);
  }
  if (!entry.hello || note.serial != entry.hello->serial) return;
  if (hasMetAnEarlierUse)
    entry.dropHello();  // where it has not, because it knew in time that we gave up, it says so
  else if (entry.isActive && !entry.isMet && note.answers == entry.ownSerial)
    entry.ready = note;
}

void PortBootstrap::takeEnded(Entry& entry, const PortNote& note, Calls& calls) {
  const bool gaveUp = note.kind == PortNote::Kind::kGaveUp;
  const bool isStanding = entry.hello && entry.hello->serial == note.serial;
  const bool wasTaken = entry.isActive && entry.peerSerial == note.serial;
  // Want of time is nobody's fault: there is time left here, and the peer may come again.
  if (gaveUp && entry.answered == note.serial && !entry.isMet) entry.answered = 0;
  if (isStanding && !entry.isMet && (!wasTaken || (gaveUp && note.code == Code::kTimeout)))
    return entry.dropHello();
  if (isStanding) entry.hello.reset();
  if (!wasTaken) return;
  entry.ended = endedStatus(note);
  if (entry.onEnded)
    calls.push_back(
        [call = std::exchange(entry.onEnded, nullptr), why = *entry.ended] { call(why); });
}

void PortBootstrap::takeGone(Entry& entry, uint64_t serial, Calls& calls) {
  const auto [first, last] = lingering_.equal_range(serial);
  for (auto each = first; each != last; ++each) calls.push_back(std::move(each->second.gone));
  lingering_.erase(first, last);
  if (entry.hello && entry.hello->serial == serial) entry.dropHello();
  if (entry.answered == serial) entry.answered = 0;
}

Status PortBootstrap::await(PeerCore& peer, uint32_t tag, Clock::time_point deadline,
                            const std::function<bool(const Entry&)>& isThere) {
  const auto ready = [&] {
    const MutexLock lock(mutex_);
    const Entry& entry = entries_[tag];
    return !broken_.isOk() || entry.ended || isThere(entry) || peer.failureCode() != Code::kOk;
  };
  const auto words = [&] {
    return peer.name() + " to add a semaphore of tag " + std::to_string(tag) + " on its side";
  };
  return peer.progress().waitAsleep(ready, deadline, words);
}

Result<PortNote> PortBootstrap::awaitHello(PeerCore& peer, uint32_t tag,
                                           Clock::time_point deadline) {
  for (;;) {
    PEERLANE_RETURN_IF_ERROR(
        await(peer, tag, deadline, [](const Entry& entry) { return entry.hello.has_value(); }));
    const MutexLock lock(mutex_);
    Entry& entry = entries_[tag];
    if (entry.ended) return *entry.ended;
    if (entry.hello) {
      entry.peerSerial = entry.hello->serial;
      return *entry.hello;
    }
    if (!broken_.isOk()) return broken_;
    if (peer.failureCode() != Code::kOk) return peer.failure();
    // It was taken back in between.
  }
}

bool PortBootstrap::isStanding(uint32_t tag, uint64_t serial) {
  const MutexLock lock(mutex_);
  const auto found = entries_.find(tag);
  return found != entries_.end() && found->second.hello && found->second.hello->serial == serial;
}

Status PortBootstrap::answer(PeerCore& peer, const PortNote& ready) {
  {
    const MutexLock lock(mutex_);
    Entry& entry = entries_[ready.tag];
    if (!entry.isHelloTaken() || entry.peerSerial != ready.answers) return Status::ok();
    entry.answered = ready.answers;
  }
  return sendNote(peer, ready);
}

Result<std::optional<PortNote>> PortBootstrap::awaitReady(PeerCore& peer, uint32_t tag,
                                                          Clock::time_point deadline) {
  const auto isThere = [](const Entry& entry) { return !entry.isHelloTaken() || entry.ready; };
  PEERLANE_RETURN_IF_ERROR(await(peer, tag, deadline, isThere));
  const MutexLock lock(mutex_);
  Entry& entry = entries_[tag];
  // Also after a kReady: the use of the peer that said it has a semaphore that is over, and the
  // peer may ask again.
  if (entry.ended) return *entry.ended;
  if (entry.isHelloTaken() && entry.ready) {
    entry.isMet = true;
    entry.hello.reset();
    return std::exchange(entry.ready, std::nullopt);
  }
  if (!broken_.isOk()) return broken_;
  if (peer.failureCode() != Code::kOk) return peer.failure();
  return std::optional<PortNote>();
}

void PortBootstrap::onEnded(uint32_t tag, const std::function<void(const Status&)>& call) {
  std::optional<Status> already;
  {
    const MutexLock lock(mutex_);
    Entry& entry = entries_[tag];
    already = entry.ended;
    if (!already) entry.onEnded = call;
  }
  if (already) call(*already);
}

}  // namespace peerlane
