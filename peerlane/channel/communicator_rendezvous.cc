// SPDX-License-Identifier: Apache-2.0
//
// How ranks that know nothing but rank 0's address become connected: everybody connects to rank 0
// and says who he is and where (his ticket, over the encrypted connection); rank 0 tells each rank
// about those between; each connects to those below it and says its rank there.
#include <algorithm>
#include <map>

#include "peerlane/channel/communicator_core.h"
#include "peerlane/core/limits.h"
#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

using Clock = Progress::Clock;

// Pieces of a text, because one message holds 4 KiB and a ticket may be longer.
constexpr size_t kPieceBytes = 3072;
constexpr uint32_t kMaxRanks = limits::kRanks;

struct Introduction {
  uint32_t rank = 0;  // whom it is about
  uint32_t ranks = 0;
  std::string ticket;
};

// What peers say on the rendezvous channel, put together again.
class Introductions final : public Task {
 public:
  Turn turn() override { return Turn::kIdle; }

  static std::shared_ptr<Introductions> of(PeerCore& peer) {
    auto all = peer.attachment<Introductions>([] { return std::make_shared<Introductions>(); });
    if (all->subscribed_.exchange(true)) return all;
    std::weak_ptr<Introductions> weak = all;
    peer.onUserMessage(kRendezvousChannel,
                       [weak, &progress = peer.progress()](const std::vector<std::byte>& bytes) {
                         if (const auto alive = weak.lock()) alive->add(bytes);
                         progress.notifyWaiters();
                       });
    return all;
  }

  static Status say(PeerCore& peer, const Introduction& what) {
    for (size_t at = 0; at == 0 || at < what.ticket.size(); at += kPieceBytes) {
      std::vector<std::byte> bytes;
      ByteWriter writer(bytes);
      writer.u32(what.rank);
      writer.u32(what.ranks);
      writer.u8(at + kPieceBytes >= what.ticket.size() ? 1 : 0);
      writer.string(std::string_view(what.ticket).substr(at, kPieceBytes), kPieceBytes);
      PEERLANE_RETURN_IF_ERROR(peer.sendUserMessage(kRendezvousChannel, std::move(bytes)));
    }
    return Status::ok();
  }

  // The next whole one.
  static Result<Introduction> hear(PeerCore& peer, Clock::time_point deadline) {
    const auto all = of(peer);
    const auto ready = [&] {
      return all->whole_.load(std::memory_order_acquire) != 0 || peer.failureCode() != Code::kOk;
    };
    PEERLANE_RETURN_IF_ERROR(peer.progress().wait(ready, deadline));
    const std::lock_guard lock(all->mutex_);
    if (!all->broken_.isOk()) return all->broken_;
    if (all->heard_.empty()) return peer.failure();
    Introduction next = std::move(all->heard_.front());
    all->heard_.erase(all->heard_.begin());
    all->whole_.fetch_sub(1, std::memory_order_release);
    return next;
  }

 private:
  void add(const std::vector<std::byte>& bytes) {
    ByteReader reader(bytes);
    const uint32_t rank = reader.u32();
    const uint32_t ranks = reader.u32();
    const bool last = reader.u8() != 0;
    const std::string_view piece = reader.string(kPieceBytes);
    const Status status = reader.finish("introduction of a rank");
    const std::lock_guard lock(mutex_);
    if (!status.isOk() || partial_.ticket.size() + piece.size() > Ticket::kMaxTextBytes) {
      broken_ = status.isOk() ? Status(Code::kCorrupt, "a ticket that is too long") : status;
      whole_.fetch_add(1, std::memory_order_release);
      return;
    }
    partial_.rank = rank;
    partial_.ranks = ranks;
    partial_.ticket += piece;
    if (!last) return;
    heard_.push_back(std::move(partial_));
    partial_ = {};
    whole_.fetch_add(1, std::memory_order_release);
  }

  std::atomic<bool> subscribed_{false};
  std::atomic<size_t> whole_{0};  // of heard_, or an error; released after it was written
  std::mutex mutex_;
  Introduction partial_;
  std::vector<Introduction> heard_;
  Status broken_;
};

Status badIntroduction(const Introduction& said, uint32_t ranks) {
  return Status(Code::kInvalidArgument,
                "a peer introduced itself as rank " + std::to_string(said.rank) + " of " +
                    std::to_string(said.ranks) +
                    "; that rank is taken, out of place, or there are " + std::to_string(ranks));
}

class Assembly {
 public:
  Assembly(Context& context, const Rendezvous& rendezvous, Clock::time_point deadline)
      : context_(context), plan_(rendezvous), deadline_(deadline), peers_(rendezvous.ranks) {}

  Result<std::vector<Peer>> gather() {
    if (plan_.rank == 0) {
      PEERLANE_RETURN_IF_ERROR(acceptAbove());
      PEERLANE_RETURN_IF_ERROR(tellTickets());
    } else {
      PEERLANE_RETURN_IF_ERROR(connectToZero());
      PEERLANE_RETURN_IF_ERROR(connectBelow());
      PEERLANE_RETURN_IF_ERROR(acceptAbove());
    }
    return std::move(peers_);
  }

 private:
  std::chrono::nanoseconds left() const {
    return std::max<std::chrono::nanoseconds>(deadline_ - Clock::now(),
                                              std::chrono::nanoseconds(0));
  }

  // Everybody with a higher rank comes here.
  Status acceptAbove() {
    tickets_.resize(plan_.ranks);
    for (uint32_t missing = plan_.ranks - plan_.rank - 1; missing > 0;) {
      PEERLANE_ASSIGN(Peer peer, context_.accept(left()));
      auto heard = Introductions::hear(*peer.core(), deadline_);
      // One that found a better way to this context, and left.
      if (!heard.isOk() && !peer.status().isOk()) continue;
      if (!heard.isOk()) return heard.status();
      Introduction& said = *heard;
      if (said.ranks != plan_.ranks || said.rank <= plan_.rank || said.rank >= plan_.ranks ||
          peers_[said.rank])
        return badIntroduction(said, plan_.ranks);
      peers_[said.rank] = std::move(peer);
      tickets_[said.rank] = std::move(said.ticket);
      --missing;
    }
    return Status::ok();
  }

  // Rank 0 only: each rank hears of those below it, in order.
  Status tellTickets() {
    for (Rank rank = 2; rank < plan_.ranks; ++rank)
      for (Rank below = 1; below < rank; ++below)
        PEERLANE_RETURN_IF_ERROR(
            Introductions::say(*peers_[rank].core(), {below, plan_.ranks, tickets_[below]}));
    return Status::ok();
  }

  // Rank 0 may start later than this one: refused connections are tried again.
  Status connectToZero() {
    for (;;) {
      auto peer = context_.connect(plan_.address, plan_.secret, left());
      if (peer.isOk()) {
        peers_[0] = std::move(*peer);
        break;
      }
      const bool later = peer.status().code() == Code::kUnavailable;
      if (!later || left().count() == 0) return peer.status().withContext("rank 0");
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(left(), kRetry));
    }
    return Introductions::say(*peers_[0].core(), {plan_.rank, plan_.ranks, context_.ticket()});
  }

  Status connectBelow() {
    for (Rank below = 1; below < plan_.rank; ++below) {
      PEERLANE_ASSIGN(const Introduction said, Introductions::hear(*peers_[0].core(), deadline_));
      if (said.rank != below || said.ranks != plan_.ranks)
        return badIntroduction(said, plan_.ranks);
      PEERLANE_ASSIGN(peers_[below], context_.connect(said.ticket, left()));
      PEERLANE_RETURN_IF_ERROR(
          Introductions::say(*peers_[below].core(), {plan_.rank, plan_.ranks, {}}));
    }
    return Status::ok();
  }

  static constexpr std::chrono::milliseconds kRetry{20};

  Context& context_;
  const Rendezvous& plan_;
  const Clock::time_point deadline_;
  std::vector<Peer> peers_;  // by rank
  std::vector<std::string> tickets_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(Context& context,
                                                           const Rendezvous& rendezvous,
                                                           const CommunicatorOptions& options) {
  if (rendezvous.ranks < 2 || rendezvous.ranks > kMaxRanks || rendezvous.rank >= rendezvous.ranks)
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rendezvous.rank) + " of " +
                                              std::to_string(rendezvous.ranks) + "; need 2 to " +
                                              std::to_string(kMaxRanks) +
                                              " ranks, and a rank below that");
  const auto deadline = Progress::deadlineIn(options.timeout);
  Assembly assembly(context, rendezvous, deadline);
  PEERLANE_ASSIGN(const std::vector<Peer> peers, assembly.gather());
  CommunicatorOptions rest = options;
  rest.timeout = std::max<Duration>(deadline - Clock::now(), Duration(0));
  return create(context, peers, rendezvous.rank, rest);
}

}  // namespace peerlane
