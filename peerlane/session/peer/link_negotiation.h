// SPDX-License-Identifier: Apache-2.0
//
// LinkNegotiation: how the two sides of a new connection agree on their links: both offer those
// that the facts allow, and the initiator takes the first in its order of preference that works.
// Fills a LinkSet, and is over once that is made. Owned by PeerCore; confined to the progress
// thread.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

class LinkNegotiation {
 public:
  LinkNegotiation(PeerEnvironment& env, const RemoteProcess& process, LinkSet& links)
      : env_(env), process_(process), links_(links) {}

  // To be called when the peer is known. An acceptor on a Unix socket waits for the first offers: a
  // hello may be a recorded one, so descriptors, and the right to read this process, are given only
  // to a side that has answered, and so has shown that it has the secret.
  Status begin();
  // Afterwards either links are made, or more is awaited.
  Status handle(control::Offers& message);
  Status handle(control::Accepted& message);
  // Drops offers that are not needed once links are made.
  void end();

  // This side has a link to offer, beside those for devices.
  bool offersLink() const;
  // Why there is no link, and which setting could change that. `offered`: what the peer offers, as
  // far as that is known.
  Status noLink(const std::map<std::string, Offer>& offered = {}) const;

 private:
  using Offered = std::map<std::string, Offer>;  // by transport
  Status sendOffers(bool all);
  Result<Offered> take(control::Offers& message);
  Status choose(Offered offered, bool peerHasMore);
  Status askForTheRest(Offered offered);
  Status offerTheRest();
  Status completeDevice(Offered& offers);
  // Goes on without a transport whose link could not be made; PEERLANE_STRICT: an error.
  Status refuseFailed(const std::string& name, const Status& why);

  PeerEnvironment& env_;
  const RemoteProcess& process_;
  LinkSet& links_;
  std::map<std::string, std::unique_ptr<PendingLink>> pending_;  // this side's offers
  Offered offers_;             // the peer's, kept by the acceptor until the initiator chose
  bool hasMore_ = false;       // acceptor: links that were not offered yet
  bool askedForMore_ = false;  // initiator
  Offered offeredBefore_;      // initiator: what came with the first offers
};

}  // namespace peerlane
