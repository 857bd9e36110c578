// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/communicator/bootstrap_queue.h"

#include "peerlane/channel/communicator/communicator_core.h"
#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

// Pieces of a text, because one message holds 4 KiB and a ticket may be longer.
constexpr size_t kPieceBytes = 3072;
// The most messages of one guest that may wait to be looked at. A guest that keeps to the protocol
// never has more than the tickets that were asked for at once.
constexpr size_t kMostUntaken = 64;

}  // namespace

Status BootstrapQueue::sendNote(PeerCore& peer, const BootstrapNote& note) {
  const std::string_view text = note.text;
  for (size_t at = 0; at == 0 || at < text.size(); at += kPieceBytes) {
    std::vector<std::byte> bytes;
    ByteWriter writer(bytes);
    writer.u8(static_cast<uint8_t>(note.kind));
    writer.u8(at + kPieceBytes >= text.size() ? 1 : 0);
    writer.u8(static_cast<uint8_t>(peer.toldAs(note.code)));
    writer.u32(note.rank);
    writer.u32(note.ranks);
    writer.string(text.substr(at, kPieceBytes), kPieceBytes);
    PEERLANE_RETURN_IF_ERROR(peer.messages().send(kBootstrapChannel, std::move(bytes)));
  }
  return Status::ok();
}

bool BootstrapQueue::isHello(const std::vector<std::byte>& bytes) {
  ByteReader reader(bytes);
  return reader.u8() == static_cast<uint8_t>(BootstrapNote::Kind::kHello);
}

void BootstrapQueue::subscribe(PeerCore& peer, size_t guest) {
  peer.messages().onMessage(kBootstrapChannel,
                            [weak = weak_from_this(), guest, partial = std::make_shared<Partial>(),
                             &progress = peer.progress()](const std::vector<std::byte>& bytes) {
                              if (const auto alive = weak.lock())
                                alive->add(guest, *partial, bytes);
                              progress.notifyWaiters();
                            });
}

void BootstrapQueue::unsubscribe(PeerCore& peer) {
  peer.messages().onMessage(kBootstrapChannel, nullptr);
}

// Progress thread.
void BootstrapQueue::add(size_t guest, Partial& partial, const std::vector<std::byte>& bytes) {
  if (partial.isOver) return;
  ByteReader reader(bytes);
  const uint8_t kind = reader.u8();
  const bool isLast = reader.u8() != 0;
  const uint8_t code = reader.u8();
  const uint32_t rank = reader.u32();
  const uint32_t ranks = reader.u32();
  const std::string_view piece = reader.string(kPieceBytes);
  reader.require(kind >= 1 && kind <= static_cast<uint8_t>(BootstrapNote::Kind::kGaveUp),
                 "is of no known kind");
  reader.require(code <= static_cast<uint8_t>(kLastCode), "has an unknown code");
  reader.require(partial.note.text.size() + piece.size() <= Ticket::kMaxTextBytes,
                 "has a text that is too long");
  if (const Status status = reader.finish("a bootstrap note of a rank"); !status.isOk()) {
    partial.isOver = true;
    return push(guest, status);
  }
  partial.note.kind = static_cast<BootstrapNote::Kind>(kind);
  partial.note.code = static_cast<Code>(code);
  partial.note.rank = rank;
  partial.note.ranks = ranks;
  partial.note.text += piece;
  if (isLast) push(guest, std::exchange(partial.note, {}));
}

void BootstrapQueue::push(size_t guest, Result<BootstrapNote> note) {
  const MutexLock lock(mutex_);
  size_t& untaken = untaken_[guest];
  if (untaken > kMostUntaken) return;
  if (++untaken > kMostUntaken)
    note = Status(Code::kCorrupt, "a rank sent more than " + std::to_string(kMostUntaken) +
                                      " notes at once in the bootstrap");
  received_.push_back({guest, std::move(note)});
  count_.store(received_.size(), std::memory_order_release);
}

std::optional<BootstrapQueue::Received> BootstrapQueue::next() {
  const MutexLock lock(mutex_);
  if (received_.empty()) return std::nullopt;
  Received first = std::move(received_.front());
  received_.pop_front();
  --untaken_[first.guest];
  count_.store(received_.size(), std::memory_order_release);
  return first;
}

}  // namespace peerlane
