// SPDX-License-Identifier: Apache-2.0
//
// The bootstrap of ranks that know nothing but rank 0's address: how they become connected. Every
// rank connects to rank 0 and tells it its rank and its ticket (over the encrypted connection).
// Each rank then asks rank 0 for the tickets of the ranks below it, some at a time, connects to
// them, and tells them its rank. When all ranks have done so, rank 0 lets all go on. A rank that
// fails tells rank 0, and rank 0 tells all the others, so that no rank waits in vain.
#include <algorithm>
#include <deque>
#include <thread>

#include "peerlane/channel/communicator/bootstrap_queue.h"
#include "peerlane/channel/communicator/communicator_core.h"
#include "peerlane/core/limits.h"
#include "peerlane/core/log.h"
#include "peerlane/os/thread.h"
#include "peerlane/session/context/arrivals.h"

namespace peerlane {
namespace {

using Clock = Progress::Clock;
using Kind = BootstrapNote::Kind;

constexpr uint32_t kMaxRanks = limits::kRanks;
// A rank asks for so many tickets at once, and connects to so many ranks at once. So the messages
// that rank 0 has queued for all of them grow with the number of ranks, not with its square.
constexpr Rank kAtOnce = 16;

// "ranks 1, 2 and 40 more of 64"
std::string ranksInWords(const std::vector<Rank>& ranks, uint32_t all) {
  constexpr size_t kNamed = 8;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kNamed); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kNamed) text += " and " + std::to_string(ranks.size() - kNamed) + " more";
  return text + " of " + std::to_string(all);
}

class RankBootstrap {
 public:
  RankBootstrap(Context& context, const Bootstrap& bootstrap, Clock::time_point deadline)
      : context_(context),
        arrivals_(context.arrivals()),
        plan_(bootstrap),
        deadline_(deadline),
        ranks_(bootstrap.ranks) {}

  Result<std::vector<Peer>> gather() {
    arrivals_.onEach(nullptr);  // this time counts, and no earlier one as rank 0
    const Status met = plan_.rank == 0 ? host() : join();
    if (!met.isOk()) giveUp(met);
    // Guests that are no ranks came for somebody else, those too that have left messages and gone.
    for (const Guest& guest : guests_)
      if (!guest.rank && !guest.isRefused) giveBack(guest.peer);
    PEERLANE_RETURN_IF_ERROR(met);
    std::vector<Peer> peers(plan_.ranks);
    for (Rank rank = 0; rank < plan_.ranks; ++rank)
      if (rank != plan_.rank) peers[rank] = guests_[*ranks_[rank].guest].peer;
    return peers;
  }

 private:
  // Somebody this side is connected with.
  struct Guest {
    Peer peer;
    std::optional<Rank> rank{};  // once it is known
    bool isGone = false;
    bool isRefused = false;  // it said something wrong as a rank; gone, too
  };
  // What this rank knows of one rank.
  struct Member {
    std::optional<size_t> guest{};
    std::string ticket{};
    std::optional<Rank> wants{};  // tickets, from this one on
    bool hasMet = false;
  };

  std::chrono::nanoseconds left() const {
    return std::max<std::chrono::nanoseconds>(deadline_ - Clock::now(),
                                              std::chrono::nanoseconds(0));
  }

  // The next step finds a peer that is gone, with the last message that it sent.
  void sendNote(Rank rank, BootstrapNote note) {
    note.ranks = plan_.ranks;
    (void)BootstrapQueue::sendNote(*guests_[*ranks_[rank].guest].peer.core(), note);
  }

  size_t welcome(const Peer& peer, std::optional<Rank> rank = {}) {
    guests_.push_back({peer, rank});
    queue_->subscribe(*peer.core(), guests_.size() - 1);
    if (rank) ranks_[*rank].guest = guests_.size() - 1;
    return guests_.size() - 1;
  }

  void giveBack(const Peer& peer) {
    BootstrapQueue::unsubscribe(*peer.core());
    arrivals_.giveBack(peer);
  }

  // --- One look at everything that may come ---

  // A rank may leave and come again until all have introduced themselves to rank 0.
  bool mustStay(const Guest& guest) const { return guest.rank && (plan_.rank != 0 || isComplete_); }
  bool hasLeft(const Guest& guest) const {
    const PeerCore& core = *guest.peer.core();
    return !guest.isGone && (mustStay(guest) ? core.failureCode() != Code::kOk : core.over());
  }

  template <typename Words>
  Status step(const Words& words) {
    const auto ready = [this] {
      return queue_->any() || arrivals_.any() ||
             std::any_of(guests_.begin(), guests_.end(),
                         [this](const Guest& guest) { return hasLeft(guest); });
    };
    PEERLANE_RETURN_IF_ERROR(arrivals_.progress().wait(ready, deadline_, words));
    while (const auto peer = arrivals_.take()) welcome(*peer);
    PEERLANE_RETURN_IF_ERROR(takeAll());
    for (Guest& guest : guests_) {
      if (!hasLeft(guest)) continue;
      PEERLANE_RETURN_IF_ERROR(takeAll());  // its last message gives the better reason
      PEERLANE_RETURN_IF_ERROR(dismiss(guest));
    }
    return Status::ok();
  }

  Status takeAll() {
    while (auto received = queue_->next()) PEERLANE_RETURN_IF_ERROR(take(*received));
    return Status::ok();
  }

  // A rank that left before all were there may come again; its messages so far are void.
  Status dismiss(Guest& guest) {
    const Status why = guest.peer.core()->failure();
    if (mustStay(guest)) return why.withContext("rank " + std::to_string(*guest.rank));
    guest.isGone = true;
    if (!guest.rank) return Status::ok();
    lastLeft_ = "; rank " + std::to_string(*guest.rank) + " came, and left: " + why.toString();
    ranks_[*guest.rank] = {};
    return Status::ok();
  }

  Status take(BootstrapQueue::Received& received) {
    Guest& guest = guests_[received.guest];
    if (guest.isGone) return Status::ok();
    const std::string who = guest.rank ? "rank " + std::to_string(*guest.rank) : "a guest";
    if (!received.note.isOk()) {
      if (guest.rank) return received.note.status().withContext(who);
      guest.isGone = guest.isRefused = true;  // no rank: the others are not to suffer
      guest.peer.core()->closeSoon();
      return Status::ok();
    }
    BootstrapNote& note = *received.note;
    const bool isHost = plan_.rank == 0;
    if (note.kind == Kind::kHello) return takeHello(received.guest, note);
    if (!guest.rank) return Status::ok();
    Member& member = ranks_[*guest.rank];
    if (note.kind == Kind::kGaveUp)
      return Status(note.code == Code::kOk ? Code::kPeerLost : note.code,
                    who + " has ended the bootstrap of the ranks: " + note.text);
    if (isHost && note.kind == Kind::kWant && !member.wants && note.rank >= 1 &&
        note.rank < *guest.rank) {
      member.wants = note.rank;
      return Status::ok();
    }
    if (isHost && note.kind == Kind::kMet && !member.hasMet) {
      member.hasMet = true;
      return Status::ok();
    }
    const Rank next = wanted_ + static_cast<Rank>(tickets_.size());
    if (*guest.rank == 0 && note.kind == Kind::kTicket && note.rank == next && next < end_) {
      tickets_.push_back(std::move(note.text));
      return Status::ok();
    }
    if (*guest.rank == 0 && note.kind == Kind::kGo) {
      mayGo_ = true;
      return Status::ok();
    }
    return Status(Code::kCorrupt, who + " sent a note that it may not send here (" +
                                      std::to_string(static_cast<int>(note.kind)) + ")");
  }

  Status takeHello(size_t number, BootstrapNote& note) {
    Guest& guest = guests_[number];
    const bool isInPlace =
        note.ranks == plan_.ranks && note.rank > plan_.rank && note.rank < plan_.ranks;
    if (guest.rank || !isInPlace || ranks_[note.rank].guest) {
      offender_ = number;
      std::string why = "it was introduced twice";
      if (note.ranks != plan_.ranks)
        why = "there are " + std::to_string(plan_.ranks);
      else if (!isInPlace)
        why = "rank " + std::to_string(plan_.rank) + " expects ranks above its own";
      else if (ranks_[note.rank].guest)
        why = "that rank is taken";
      return Status(Code::kInvalidArgument, "a peer introduced itself as rank " +
                                                std::to_string(note.rank) + " of " +
                                                std::to_string(note.ranks) + "; " + why);
    }
    guest.rank = note.rank;
    ranks_[note.rank].guest = number;
    ranks_[note.rank].ticket = std::move(note.text);
    return Status::ok();
  }

  template <typename Lacks>
  std::vector<Rank> those(Rank first, const Lacks& lacks) const {
    std::vector<Rank> found;
    for (Rank rank = first; rank < plan_.ranks; ++rank)
      if (lacks(ranks_[rank])) found.push_back(rank);
    return found;
  }

  // Everybody with a higher rank comes here.
  Status acceptAbove() {
    const auto missing = [this] {
      return those(plan_.rank + 1, [](const Member& member) { return !member.guest; });
    };
    const auto words = [&] {
      return ranksInWords(missing(), plan_.ranks) + " to introduce themselves to rank " +
             std::to_string(plan_.rank) + lastLeft_ + arrivals_.whereInWords();
    };
    while (!missing().empty()) PEERLANE_RETURN_IF_ERROR(step(words));
    return Status::ok();
  }

  // --- Rank 0 ---

  Status host() {
    PEERLANE_RETURN_IF_ERROR(acceptAbove());
    isComplete_ = true;
    const auto missing = [this] {
      return those(1, [](const Member& member) { return !member.hasMet; });
    };
    const auto words = [&] {
      return ranksInWords(missing(), plan_.ranks) + " to connect to those below them";
    };
    for (;;) {
      sendTickets();
      if (missing().empty()) break;
      PEERLANE_RETURN_IF_ERROR(step(words));
    }
    for (Rank rank = 1; rank < plan_.ranks; ++rank) sendNote(rank, {.kind = Kind::kGo});
    return Status::ok();
  }

  void sendTickets() {
    for (Rank rank = 1; rank < plan_.ranks; ++rank) {
      const std::optional<Rank> first = std::exchange(ranks_[rank].wants, std::nullopt);
      if (!first) continue;
      for (Rank below = *first; below < std::min(rank, *first + kAtOnce); ++below)
        sendNote(rank, {.kind = Kind::kTicket, .rank = below, .text = ranks_[below].ticket});
    }
  }

  // --- All others ---

  Status join() {
    PEERLANE_RETURN_IF_ERROR(connectToZero());
    PEERLANE_RETURN_IF_ERROR(connectBelow());
    PEERLANE_RETURN_IF_ERROR(acceptAbove());
    sendNote(0, {.kind = Kind::kMet, .rank = plan_.rank});
    const auto words = [this] {
      return zeroInWords() + " to say that all " + std::to_string(plan_.ranks) + " ranks have met";
    };
    while (!mayGo_) PEERLANE_RETURN_IF_ERROR(step(words));
    return Status::ok();
  }

  std::string zeroInWords() const {
    return "rank 0, " + guests_[*ranks_[0].guest].peer.core()->name() + ",";
  }

  // Rank 0 may start later than this one: refused connections are tried again.
  Status connectToZero() {
    const auto begin = Clock::now();
    Status last;
    for (;;) {
      auto peer = context_.connect(plan_.address, plan_.secret, left());
      if (peer.isOk()) {
        welcome(*peer, 0);
        break;
      }
      const Code code = peer.status().code();
      if (code == Code::kUnavailable)
        last = peer.status();
      else if (code != Code::kTimeout || last.isOk())
        return peer.status().withContext("rank 0");
      if (code == Code::kTimeout || left().count() == 0)
        return Status(Code::kTimeout, "waited " + durationInWords(Clock::now() - begin) +
                                          " for rank 0 to listen at " + plan_.address +
                                          "; last: " + std::string(last.message()));
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(left(), kRetry));
    }
    sendNote(0, {.kind = Kind::kHello, .rank = plan_.rank, .text = context_.ticket()});
    return Status::ok();
  }

  Status connectBelow() {
    const auto words = [this] {
      return zeroInWords() + " to tell where ranks " + std::to_string(wanted_) + " to " +
             std::to_string(end_ - 1) + " are, which it does when all " +
             std::to_string(plan_.ranks) + " have introduced themselves";
    };
    for (wanted_ = 1; wanted_ < plan_.rank; wanted_ = end_) {
      end_ = std::min(plan_.rank, wanted_ + kAtOnce);
      tickets_.clear();
      sendNote(0, {.kind = Kind::kWant, .rank = wanted_});
      while (tickets_.size() < end_ - wanted_) PEERLANE_RETURN_IF_ERROR(step(words));
      PEERLANE_RETURN_IF_ERROR(connectToThose());
    }
    return Status::ok();
  }

  // At once: each takes some round trips, and they do not depend on each other.
  Status connectToThose() {
    std::vector<std::optional<Result<Peer>>> made(tickets_.size());
    const auto connect = [&](size_t i) { made[i] = context_.connect(tickets_[i], left()); };
    std::vector<std::thread> threads;
    Status started;
    while (started.isOk() && threads.size() + 1 < made.size()) {
      auto thread =
          startThread("connecting to a rank", [&connect, i = threads.size() + 1] { connect(i); });
      started = thread.status();
      if (thread.isOk()) threads.push_back(std::move(*thread));
    }
    if (!started.isOk())
      PEERLANE_LOG_WARN("{}; ranks are connected to one after the other", started.toString());
    connect(0);
    for (size_t i = threads.size() + 1; i < made.size(); ++i) connect(i);
    for (std::thread& thread : threads) thread.join();
    Status first;
    for (size_t i = 0; i < made.size(); ++i) {
      const Rank rank = wanted_ + static_cast<Rank>(i);
      if (made[i]->isOk()) {
        welcome(**made[i], rank);
        sendNote(rank, {.kind = Kind::kHello, .rank = plan_.rank});
      } else if (first.isOk()) {
        first = made[i]->status().withContext("connecting to rank " + std::to_string(rank));
      }
    }
    return first;
  }

  // --- The end without success ---

  // Tells every rank that may wait for the others why no rank gets a communicator, also the guests
  // that have not told their rank yet. Closes the connections, so that ranks can meet anew.
  void giveUp(const Status& why) {
    const BootstrapNote note{.kind = Kind::kGaveUp,
                             .code = why.code(),
                             .rank = plan_.rank,
                             .ranks = plan_.ranks,
                             .text = std::string(why.message()).substr(0, kMostReasonBytes)};
    if (plan_.rank == 0) {
      sendToLatecomers(note);
      while (const auto peer = arrivals_.take()) welcome(*peer);
    }
    for (const Guest& guest : guests_) {
      if (guest.isGone) continue;
      (void)BootstrapQueue::sendNote(*guest.peer.core(), note);
      if (guest.rank) guest.peer.core()->closeSoon();
    }
    if (!offender_ || guests_[*offender_].rank) return;
    guests_[*offender_].isGone = guests_[*offender_].isRefused = true;
    guests_[*offender_].peer.core()->closeSoon();
  }

  // No queue takes the notes of ranks that come later, so each gets the note as soon as its hello
  // is here.
  void sendToLatecomers(const BootstrapNote& note) {
    arrivals_.onEach([note, until = deadline_](const Peer& late) {
      if (Clock::now() >= until) return;
      late.core()->messages().onMessage(
          kBootstrapChannel,
          [weak = late.core()->weak_from_this(), note](const std::vector<std::byte>& bytes) {
            const auto peer = weak.lock();
            if (!peer || !BootstrapQueue::isHello(bytes)) return;
            (void)BootstrapQueue::sendNote(*peer, note);
            peer->closeSoon();  // after the note was sent
          });
    });
  }

  static constexpr std::chrono::milliseconds kRetry{20};
  static constexpr size_t kMostReasonBytes = 2048;

  Context& context_;
  Arrivals& arrivals_;
  const Bootstrap& plan_;
  const Clock::time_point deadline_;
  const std::shared_ptr<BootstrapQueue> queue_ = std::make_shared<BootstrapQueue>();
  std::deque<Guest> guests_;
  std::vector<Member> ranks_;
  std::string lastLeft_;
  std::optional<size_t> offender_;  // the guest whose hello did not fit
  bool isComplete_ = false;         // rank 0: all have introduced themselves
  // Others: the tickets that were asked for, of ranks [wanted_, end_), and those that have come.
  Rank wanted_ = 0;
  Rank end_ = 0;
  std::vector<std::string> tickets_;
  bool mayGo_ = false;
};

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(Context& context,
                                                           const Bootstrap& bootstrap,
                                                           const CommunicatorOptions& options) {
  if (bootstrap.ranks < 2 || bootstrap.ranks > kMaxRanks || bootstrap.rank >= bootstrap.ranks)
    return Status(Code::kInvalidArgument, "rank " + std::to_string(bootstrap.rank) + " of " +
                                              std::to_string(bootstrap.ranks) + "; need 2 to " +
                                              std::to_string(kMaxRanks) +
                                              " ranks, and a rank below that");
  const auto deadline = Progress::deadlineIn(options.timeout);
  RankBootstrap ranks(context, bootstrap, deadline);
  PEERLANE_ASSIGN(const std::vector<Peer> peers, ranks.gather());
  CommunicatorOptions rest = options;
  rest.timeout = std::max<Duration>(deadline - Clock::now(), Duration(0));
  return create(context, peers, bootstrap.rank, rest);
}

}  // namespace peerlane
