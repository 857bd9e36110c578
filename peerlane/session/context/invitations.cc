// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/context/invitations.h"

#include <utility>

#include "peerlane/os/process.h"
#include "peerlane/session/context/arrivals.h"
#include "peerlane/session/peer/peer_core.h"

namespace peerlane {
namespace {

// A guest that left messages is still to be taken.
void forgetGone(Invited& invited) {
  std::erase_if(invited.guests, [](const auto& guest) {
    return guest->over() && !guest->messages().hasForProgram();
  });
}

bool isOpen(Invited& invited) {
  forgetGone(invited);
  return invited.over.isOk() && invited.guests.size() < Invited::kMostGuests;
}

}  // namespace

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
  const std::lock_guard lock(mutex_);
  return byKey_.emplace(invited->keyId, std::move(invited))->second;
}

Result<Peer> Invitations::accept(const InvitedRef& invited, Duration timeout) {
  const auto settled = [&] { return invited->settled.load(std::memory_order_acquire); };
  const auto deadline = Progress::deadlineIn(timeout);
  for (;;) {
    PEERLANE_RETURN_IF_ERROR(progress_.waitAsleep(settled, deadline, [this] {
      return "a peer to connect with the ticket of an invitation" + arrivals_.whereInWords();
    }));
    const std::lock_guard lock(mutex_);
    if (!invited->over.isOk()) return invited->over;
    forgetGone(*invited);
    if (invited->guests.empty()) {
      invited->settled.store(false, std::memory_order_relaxed);
      continue;
    }
    forgetKey(invited);
    invited->over = Status(Code::kClosed, "the peer that was invited has been taken before");
    invited->isTaken = true;
    Peer taken(std::move(invited->guests.front()));
    invited->guests.pop_front();
    return taken;
  }
}

bool Invitations::reopen(const InvitedRef& invited) {
  const std::lock_guard lock(mutex_);
  if (isClosed_ || !std::exchange(invited->isTaken, false)) return false;
  invited->over = Status::ok();
  invited->settled.store(!invited->guests.empty(), std::memory_order_release);
  byKey_.emplace(invited->keyId, invited);
  return true;
}

void Invitations::cancel(const InvitedRef& invited) {
  std::deque<std::shared_ptr<PeerCore>> unwanted;
  {
    const std::lock_guard lock(mutex_);
    forgetKey(invited);
    invited->isTaken = false;
    unwanted.swap(invited->guests);
    if (invited->over.isOk())
      invited->over = Status(Code::kCancelled, "the invitation was cancelled");
    invited->settled.store(true, std::memory_order_release);
  }
  for (const auto& guest : unwanted) guest->closeSoon();
  progress_.notifyWaiters();
}

// Under mutex_.
void Invitations::forgetKey(const InvitedRef& invited) {
  std::erase_if(byKey_, [&](const auto& each) { return each.second == invited; });
}

Invitations::InvitedRef Invitations::find(uint32_t keyId,
                                          const HandshakeOptions::Fits& fits) const {
  std::vector<InvitedRef> named;
  {
    const std::lock_guard lock(mutex_);
    for (auto [at, end] = byKey_.equal_range(keyId); at != end; ++at)
      if (isOpen(*at->second)) named.push_back(at->second);
  }
  for (const InvitedRef& invited : named)
    if (fits(invited->secret)) return invited;
  return nullptr;
}

void Invitations::admit(const InvitedRef& invited, const std::shared_ptr<PeerCore>& peer) {
  bool isWelcome = false;
  {
    const std::lock_guard lock(mutex_);
    isWelcome = isOpen(*invited);
    if (isWelcome) {
      invited->guests.push_back(peer);
      invited->settled.store(true, std::memory_order_release);
    }
  }
  if (!isWelcome) return peer->close();
  progress_.notifyWaiters();
}

void Invitations::close() {
  const std::lock_guard lock(mutex_);
  isClosed_ = true;
  for (const auto& [key, invited] : std::exchange(byKey_, {})) {
    invited->over = Status(Code::kClosed, "the context of the invitation is gone");
    invited->settled.store(true, std::memory_order_release);
  }
}

}  // namespace peerlane
