// SPDX-License-Identifier: Apache-2.0
//
// LinkNegotiation: how the two sides of a new connection agree on their links: both offer those
// that the facts allow, the initiator makes all that add something to those before them, and the
// acceptor makes the same and says which of them work for it, too. A link that carries words is
// made when this side's slab is granted over it. Fills a LinkSet, and is over once that is made.
// Owned by PeerCore; confined to the progress thread.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/session/line/link_lines.h"
#include "peerlane/session/peer/link_set.h"
#include "peerlane/session/peer/peer_environment.h"
#include "peerlane/session/peer/remote_process.h"
#include "peerlane/session/peer/slab_pair.h"
#include "peerlane/session/wire/control_message.h"
#include "peerlane/transport/transport.h"

namespace peerlane {

class LinkNegotiation {
 public:
  LinkNegotiation(PeerEnvironment& env, const RemoteProcess& process, LinkSet& links,
                  LinkLines& lines, SlabPair& slabs)
      : env_(env), process_(process), links_(links), lines_(lines), slabs_(slabs) {}

  // To be called when the peer is known. An acceptor on a Unix socket waits for the first offers: a
  // hello may be a recorded one, so descriptors, and the right to read this process, are given only
  // to a side that has answered, and so has shown that it has the secret.
  Status begin();
  // Afterwards either links are made, or more is awaited.
  Status handle(control::Offers& message);
  Status handle(control::Accepted& message);
  // Drops offers that are not needed once links are made.
  void end();
  // The peer has said which links it made: the sets of both sides are the same.
  bool isAgreed() const { return isAgreed_; }

  // This side has a link to offer that reaches host memory.
  bool offersLink() const;
  // Why there is no link that carries words, and which setting could change that: one that keeps a
  // link from being made that is allowed, else PEERLANE_LINKS. `offered`: what the peer offers, as
  // far as that is known.
  Status noLink(const std::map<std::string, Offer>& offered = {}) const;

 private:
  using Offered = std::map<std::string, Offer>;  // by transport
  Status sendOffers(bool all);
  LinkSurroundings surroundingsFor(const std::string& name);
  Result<Offered> take(control::Offers& message);
  Status choose(Offered offered, bool peerHasMore);
  Status complete(const std::string& name, Offer theirs, bool& isMade);
  bool carriesWords() const;  // one of the links made so far
  Status askForTheRest(Offered offered);
  Status offerTheRest();
  Status makeChosen(const control::Accepted& message);
  Status keepMade(const control::Accepted& message);
  Status sendMade();
  void takeRefusals(const std::vector<control::Refusal>& refusals);
  void refuse(const std::string& name, std::string reason);
  Status refuseUnprepared(const Transport& transport, const Status& why);
  Status refuseMissed();
  const Transport* transportOf(const std::string& name) const;
  // Why settings of this side exclude it; empty: they do not.
  std::string whyForbidden(const Transport& transport) const;
  // Goes on without a transport whose link could not be made; PEERLANE_STRICT: an error. The first
  // refuses it as well.
  Status refuseFailed(const std::string& name, const Status& why);
  Status goOnWithout(const std::string& name, const Status& why);

  PeerEnvironment& env_;
  const RemoteProcess& process_;
  LinkSet& links_;
  LinkLines& lines_;
  SlabPair& slabs_;
  std::map<std::string, std::unique_ptr<PendingLink>> pending_;  // this side's offers
  Offered offers_;  // the peer's, kept by the acceptor until the initiator chose
  // Links between hosts that the user misses if none within the host is made, with the reasons.
  std::vector<std::pair<std::string, Status>> missed_;
  // Links that are allowed, and for whose refusal the reason names the cure.
  std::set<std::string> curable_;
  bool hasOffers_ = false;     // acceptor: they came
  bool hasMore_ = false;       // acceptor: links that were not offered yet
  bool askedForMore_ = false;  // initiator
  bool isAgreed_ = false;
  bool isChosen_ = false;  // initiator: the acceptor's answer is awaited
  Offered offeredBefore_;  // initiator: what came with the first offers
};

}  // namespace peerlane
