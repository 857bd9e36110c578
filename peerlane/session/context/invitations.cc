// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/invitations.h"

#include <utility>

#include "peerlane/os/process.h"
#include "peerlane/session/context/arrivals.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
std::string Invitations::ticketText(const Secret& secret) const {
  Ticket ticket;
  ticket.context = id_;
  ticket.secret = secret;
  ticket.hostIdentity = localHostIdentity();
  ticket.addresses = addresses_;
  if (ticket.addresses.size() > Ticket::kMaxAddresses)
    ticket.addresses.resize(Ticket::kMaxAddresses);
  auto text = ticket.encode();
  PEERLANE_CHECK(text.isOk());
  return *text;
}

Invitations::InvitedRef Invitations::invite() {
  auto invited = std::make_shared<Invited>();
  invited->secret = Secret::random();
  invited->keyId = keyIdOf(invited->secret);
  const MutexLock lock(mutex_);
  std::erase_if(all_, [](const auto& each) { return each.expired(); });
  all_.push_back(invited);
  return byKey_.emplace(invited->keyId, std::move(invited))->second;
}

Result<Peer> Invitations::accept(const InvitedRef& invited, Duration timeout) {
  const auto settled = [&] { return invited->settled.load(std::memory_order_acquire); };
  const auto deadline = Progress::deadlineIn(timeout);
  for (;;) {
    PEERLANE_RETURN_IF_ERROR(progress_.waitAsleep(settled, deadline, [this] {
      return "a peer to connect with the ticket of an invitation" + arrivals_.whereInWords();
    }));
    const MutexLock lock(mutex_);
    if (!invited->over.isOk()) return invited->over;
    auto guest = invited->guests.take();
    if (!guest) {
      invited->settled.store(false, std::memory_order_relaxed);
      continue;
    }
    forgetKey(invited);
    invited->over = Status(Code::kClosed, "the peer that was invited has been taken before");
    invited->isTaken = true;
    return Peer(std::move(guest));
  }
}

bool Invitations::reopen(const InvitedRef& invited) {
  const MutexLock lock(mutex_);
  if (isClosed_ || !std::exchange(invited->isTaken, false)) return false;
  invited->over = Status::ok();
  invited->settled.store(!invited->guests.empty(), std::memory_order_release);
  byKey_.emplace(invited->keyId, invited);
  return true;
}

void Invitations::cancel(const InvitedRef& invited) {
  std::vector<std::shared_ptr<PeerCore>> unwanted;
  {
    const MutexLock lock(mutex_);
    forgetKey(invited);
    invited->isTaken = false;
    unwanted = invited->guests.takeAll();
    if (invited->over.isOk())
      invited->over = Status(Code::kCancelled, "the invitation was cancelled");
    invited->settled.store(true, std::memory_order_release);
  }
  for (const auto& guest : unwanted) guest->closeSoon();
  progress_.notifyWaiters();
}

void Invitations::forgetKey(const InvitedRef& invited) {
  std::erase_if(byKey_, [&](const auto& each) { return each.second == invited; });
}

Invitations::Found Invitations::find(uint32_t keyId, const HandshakeOptions::Fits& fits) const {
  std::vector<Found> named;
  {
    const MutexLock lock(mutex_);
    for (auto [at, end] = byKey_.equal_range(keyId); at != end; ++at)
      named.push_back({at->second, at->second->hasRoom()});
  }
  for (const Found& found : named)
    if (fits(found.invited->secret)) return found;
  return {};
}

void Invitations::admit(const InvitedRef& invited, const std::shared_ptr<PeerCore>& peer) {
  bool isWelcome = false;
  {
    const MutexLock lock(mutex_);
    isWelcome = invited->over.isOk() && invited->hasRoom();
    if (isWelcome) {
      invited->guests.add(peer);
      invited->settled.store(true, std::memory_order_release);
    }
  }
  if (!isWelcome) return peer->close();
  progress_.notifyWaiters();
}

std::vector<std::shared_ptr<PeerCore>> Invitations::left(const std::shared_ptr<PeerCore>& peer) {
  std::vector<std::shared_ptr<PeerCore>> dropped;
  const MutexLock lock(mutex_);
  for (const auto& each : all_) {
    const auto invited = each.lock();
    if (!invited) continue;
    dropped.push_back(invited->guests.leave(peer));
    if (invited->over.isOk())
      invited->settled.store(!invited->guests.empty(), std::memory_order_release);
  }
  return dropped;
}

std::vector<std::shared_ptr<PeerCore>> Invitations::waiting() const {
  std::vector<std::shared_ptr<PeerCore>> waiting;
  const MutexLock lock(mutex_);
  for (const auto& each : all_)
    if (const auto invited = each.lock()) {
      const auto guests = invited->guests.all();
      waiting.insert(waiting.end(), guests.begin(), guests.end());
    }
  return waiting;
}

void Invitations::close() {
  const MutexLock lock(mutex_);
  isClosed_ = true;
  for (const auto& [key, invited] : std::exchange(byKey_, {})) {
    invited->over = Status(Code::kClosed, "the context of the invitation is gone");
    invited->settled.store(true, std::memory_order_release);
  }
}

}  // namespace peerlane
