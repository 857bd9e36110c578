// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/port_meeting.h"

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

std::shared_ptr<PortMeeting> PortMeeting::of(PeerCore& peer) {
  auto meeting = peer.attachment<PortMeeting>([] { return std::make_shared<PortMeeting>(); });
  if (meeting->subscribed_.exchange(true)) return meeting;
  std::weak_ptr<PortMeeting> weak = meeting;
  peer.onUserMessage(kPortChannel,
                     [weak, &progress = peer.progress()](const std::vector<std::byte>& bytes) {
                       if (const auto alive = weak.lock()) alive->take(bytes);
                       progress.notifyWaiters();
                     });
  return meeting;
}

Result<uint64_t> PortMeeting::begin(uint32_t tag) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[tag];
  if (entry.isActive)
    return Status(Code::kUnavailable, "semaphore tag " + std::to_string(tag) +
                                          " is in use on this connection; remove that one first, "
                                          "or take another tag");
  entry.isActive = true;
  entry.isPeerGone = false;
  entry.peerSerial = 0;
  entry.ready.reset();
  entry.ownSerial = nextSerial_++;
  return entry.ownSerial;
}

void PortMeeting::end(uint32_t tag, std::function<void()> gone) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(tag);
  if (found == entries_.end()) return;
  const bool isGone = found->second.isPeerGone || found->second.peerSerial == 0;
  if (!isGone) leaving_[found->second.peerSerial] = std::exchange(gone, nullptr);
  Entry next;
  next.hello = std::move(found->second.hello);
  if (next.hello)
    found->second = std::move(next);
  else
    entries_.erase(found);
  lock.unlock();
  if (gone) gone();
}

void PortMeeting::take(const std::vector<std::byte>& bytes) {
  auto decoded = PortNote::decode(bytes);
  std::function<void(const Status&)> call;
  std::function<void()> gone;
  Status ended;
  {
    const std::lock_guard lock(mutex_);
    if (decoded.isOk() && entries_.size() >= kMostTags && !entries_.contains(decoded->tag))
      decoded = Status(Code::kCorrupt, "more semaphore tags than a connection has");
    if (!decoded.isOk()) {
      PEERLANE_LOG_WARN("a note about a semaphore is dropped: {}", decoded.status().toString());
      if (broken_.isOk()) broken_ = decoded.status();
      return;
    }
    Entry& entry = entries_[decoded->tag];
    switch (decoded->kind) {
      case PortNote::Kind::kHello: entry.hello = std::move(*decoded); break;
      case PortNote::Kind::kReady:
        // It may come before the hello was taken.
        if (entry.isActive && decoded->answers == entry.ownSerial &&
            decoded->serial == (entry.hello ? entry.hello->serial : entry.peerSerial))
          entry.ready = *decoded;
        break;
      case PortNote::Kind::kEnded:
        ended = endedStatus(*decoded);
        takeEnded(entry, *decoded, call);
        break;
      case PortNote::Kind::kGone:
        if (const auto leaving = leaving_.find(decoded->serial); leaving != leaving_.end()) {
          gone = std::move(leaving->second);
          leaving_.erase(leaving);
        } else if (entry.peerSerial == decoded->serial) {
          entry.isPeerGone = true;
        }
        if (!entry.isActive && !entry.hello) entries_.erase(decoded->tag);
        break;
    }
  }
  if (call) call(ended);
  if (gone) gone();
}

// A hello that was not taken is withdrawn; what was said of an older semaphore is nobody's.
void PortMeeting::takeEnded(Entry& entry, const PortNote& note,
                            std::function<void(const Status&)>& call) {
  if (entry.hello && entry.hello->serial == note.serial) {
    entry.hello.reset();
    entry.ready.reset();
    if (!entry.isActive) entries_.erase(note.tag);
  } else if (entry.isActive && entry.peerSerial == note.serial) {
    entry.ended = endedStatus(note);
    call = std::exchange(entry.onEnded, nullptr);
  } else if (!entry.isActive) {
    entries_.erase(note.tag);
  }
}

bool PortMeeting::has(uint32_t tag, PortNote::Kind kind) {
  const std::lock_guard lock(mutex_);
  const Entry& entry = entries_[tag];
  return !broken_.isOk() || entry.ended ||
         (kind == PortNote::Kind::kHello ? entry.hello.has_value() : entry.isReady());
}

Result<PortNote> PortMeeting::hear(PeerCore& peer, uint32_t tag, PortNote::Kind kind,
                                   std::chrono::steady_clock::time_point deadline) {
  const auto ready = [&] { return has(tag, kind) || peer.failureCode() != Code::kOk; };
  for (;;) {
    const Status waited = peer.progress().waitAsleep(ready, deadline);
    if (waited.code() == Code::kTimeout)
      return Status(Code::kTimeout, "the peer has not added a semaphore of tag " +
                                        std::to_string(tag) + " on its side in time");
    PEERLANE_RETURN_IF_ERROR(waited);
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[tag];
    auto& wanted = kind == PortNote::Kind::kHello ? entry.hello : entry.ready;
    // Also behind a kReady: the peer has given up, and who is told now can ask again.
    if (entry.ended) return *entry.ended;
    if (kind == PortNote::Kind::kHello ? wanted.has_value() : entry.isReady()) {
      PortNote note = std::move(*wanted);
      wanted.reset();
      if (kind == PortNote::Kind::kHello) entry.peerSerial = note.serial;
      return note;
    }
    if (!broken_.isOk()) return broken_;
    if (peer.failureCode() != Code::kOk) return peer.failure();
    // The peer has withdrawn it in between.
  }
}

void PortMeeting::onEnded(uint32_t tag, const std::function<void(const Status&)>& call) {
  std::optional<Status> already;
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[tag];
    already = entry.ended;
    if (!already) entry.onEnded = call;
  }
  if (already) call(*already);
}

}  // namespace peerlane
