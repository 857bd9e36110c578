// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/link_negotiation.h"

#include <fmt/ranges.h>

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

// A setting of this side asks for something that is not there, or memory is short.
bool isLacking(const Status& why) {
  return why.code() == Code::kInvalidArgument || why.code() == Code::kOutOfMemory;
}

}  // namespace

Status LinkNegotiation::begin() {
  if (!env_.initiator && process_.facts().unixSocket) return Status::ok();
  return sendOffers(/*all=*/true);
}

void LinkNegotiation::end() {
  pending_.clear();
  offers_.clear();
  std::vector<std::string> made;
  for (const Link* link : links_.live()) made.push_back(link->traits().transport);
  lines_.endAllBut(made);
}

const Transport* LinkNegotiation::transportOf(const std::string& name) const {
  for (const auto& transport : env_.around.transports)
    if (transport->name() == name) return transport.get();
  return nullptr;
}

void LinkNegotiation::refuse(const std::string& name, std::string reason) {
  const Transport* const transport = transportOf(name);
  lines_.end(name);
  links_.refuse(name, std::move(reason),
                transport == nullptr ? LinkAbilities() : transport->abilities());
}

std::string LinkNegotiation::whyForbidden(const Transport& transport) const {
  const Config& config = env_.around.config;
  if (!config.allowsLink(transport.family())) return "not among PEERLANE_LINKS";
  if (config.networkOnly && transport.scope() != LinkScope::kNetwork)
    return "only links between hosts were asked for";
  return {};
}

namespace {

// Whether links that fail only with the peer's process reach all that this one would.
bool isNeedless(const Transport& transport, const LinkAbilities& others) {
  return transport.abilities().areCoveredBy(others);
}

// Nothing that the peer offers is offered here, and for some of it a setting of this side is the
// cause, which the peer would not learn from the offers.
template <typename Pending, typename Curable, typename Offered>
bool isToBlame(const Pending& pending, const Curable& curable, const Offered& offers) {
  const auto isHere = [&](const auto& each) { return pending.contains(each.first); };
  const auto isCause = [&](const auto& each) { return curable.contains(each.first); };
  return std::none_of(offers.begin(), offers.end(), isHere) &&
         std::any_of(offers.begin(), offers.end(), isCause);
}

}  // namespace

LinkSurroundings LinkNegotiation::surroundingsFor(const std::string& name) {
  Progress& progress = env_.around.progress;
  return {env_.around.config,
          progress.loop(),
          progress.readiness(),
          progress.bell(),
          env_.around.regions,
          [&progress] { progress.nudge(); },
          [&progress] { progress.countWakeup(); },
          env_.around.copier.team(),
          process_.knownOfFrames(),
          process_.knowsLinkMessages() ? lines_.make(name) : nullptr};
}

// On one host the best link almost always works, and another one may open a door that nobody needs
// (tcp: a listener that every user of the host can reach). So an acceptor there offers what adds to
// the best ones first, and the rest, `all`, to a peer that can use too little of it.
Status LinkNegotiation::sendOffers(bool all) {
  control::Offers offers;
  offers.devices = !env_.around.devices.empty();
  std::vector<Fd> fds;
  LinkAbilities offered;
  for (const auto& transport : env_.around.transports) {
    const std::string name(transport->name());
    if (pending_.contains(name) || links_.isRefused(name)) continue;
    if (std::string why = whyForbidden(*transport); !why.empty()) {
      refuse(name, std::move(why));
      continue;
    }
    if (!all && isNeedless(*transport, offered)) {
      offers.more = true;
      continue;
    }
    auto pending = transport->prepare(process_.facts(), surroundingsFor(name));
    if (!pending.isOk()) {
      // A shortage passes; a pair that took a worse link for it would stay with that.
      if (pending.status().code() == Code::kUnavailable && !offersLink())
        return pending.status().withContext("link " + name);
      PEERLANE_RETURN_IF_ERROR(refuseUnprepared(*transport, pending.status()));
      continue;
    }
    Offer offer = (*pending)->takeOffer();
    offers.links.push_back({name, std::move(offer.blob), static_cast<uint32_t>(offer.fds.size())});
    for (Fd& fd : offer.fds) fds.push_back(std::move(fd));
    pending_[name] = std::move(*pending);
    if (transport->scope() != LinkScope::kNetwork) offered.add(transport->abilities());
  }
  hasMore_ = offers.more;
  // These would leave the initiator to guess. Its offers are answered with the reason.
  if (!env_.initiator && (!offersLink() || (!hasMore_ && isToBlame(pending_, curable_, offers_))))
    return Status::ok();
  return env_.connection->send(std::move(offers), std::move(fds));
}

// The facts exclude most. The user misses a link for which this side lacks something; one between
// hosts only if none within the host is made.
Status LinkNegotiation::refuseUnprepared(const Transport& transport, const Status& why) {
  const std::string name(transport.name());
  if (isLacking(why)) {
    curable_.insert(name);
    if (transport.scope() != LinkScope::kNetwork) return refuseFailed(name, why);
    // Each transport of a kind with several says the same.
    const bool isKnown = std::any_of(missed_.begin(), missed_.end(), [&](const auto& each) {
      return each.second.message() == why.message();
    });
    if (!isKnown) missed_.emplace_back(name, why);
  }
  refuse(name, std::string(why.message()));
  return Status::ok();
}

Status LinkNegotiation::refuseMissed() {
  const std::vector<Link*> live = links_.live();
  if (std::any_of(live.begin(), live.end(), [](const Link* link) {
        return link->traits().scope != LinkScope::kNetwork && link->traits().carriesWords();
      }))
    return Status::ok();
  for (const auto& [name, why] : missed_) PEERLANE_RETURN_IF_ERROR(goOnWithout(name, why));
  return Status::ok();
}

Result<LinkNegotiation::Offered> LinkNegotiation::take(control::Offers& message) {
  Offered offered;
  for (control::LinkOffer& offer : message.links) {
    PEERLANE_ASSIGN(auto fds, env_.connection->takeFds(offer.fdCount));
    offered[offer.transport] = {std::move(offer.blob), std::move(fds)};
  }
  offered.merge(offeredBefore_);
  return offered;
}

Status LinkNegotiation::handle(control::Offers& message) {
  if (links_.isMade() || isChosen_ || hasOffers_)
    return Status(Code::kCorrupt, "link offers came twice");
  links_.setDevicesAdd(!env_.around.devices.empty() || message.devices);
  PEERLANE_ASSIGN(Offered offered, take(message));
  if (env_.initiator) return choose(std::move(offered), message.more);
  offers_ = std::move(offered);
  hasOffers_ = true;
  if (process_.facts().unixSocket) PEERLANE_RETURN_IF_ERROR(sendOffers(/*all=*/false));
  const bool isHopeless = !hasMore_ && isToBlame(pending_, curable_, offers_);
  return offersLink() && !isHopeless ? Status::ok() : noLink(offers_);
}

Status LinkNegotiation::choose(Offered offered, bool peerHasMore) {
  std::vector<std::string> notOffered;
  LinkAbilities made;
  for (const Link* link : links_.live())
    if (link->traits().scope != LinkScope::kNetwork) made.add(link->traits().abilities);
  for (const auto& transport : env_.around.transports) {
    const std::string name(transport->name());
    if (!pending_.contains(name) || isNeedless(*transport, made)) continue;
    auto theirs = offered.find(name);
    if (theirs == offered.end()) {
      notOffered.push_back(name);
      continue;
    }
    Offer offer = std::move(theirs->second);
    offered.erase(theirs);
    bool isMade = false;
    PEERLANE_RETURN_IF_ERROR(complete(name, std::move(offer), isMade));
    if (isMade && transport->scope() != LinkScope::kNetwork) made.add(transport->abilities());
  }
  const bool isEnough = carriesWords();
  if (!isEnough && peerHasMore && !askedForMore_) return askForTheRest(std::move(offered));
  for (const std::string& name : notOffered) refuse(name, "not offered by the peer");
  if (!isEnough) return noLink(offered);
  isChosen_ = true;
  links_.open();
  return sendMade();
}

bool LinkNegotiation::carriesWords() const {
  const std::vector<Link*> live = links_.live();
  return std::any_of(live.begin(), live.end(),
                     [](const Link* link) { return link->traits().carriesWords(); });
}

Status LinkNegotiation::complete(const std::string& name, Offer theirs, bool& isMade) {
  auto link = pending_.at(name)->complete(std::move(theirs));
  pending_.erase(name);
  // A link is of no use where the peer cannot write this side's words: a NIC may not take their
  // memory, for example because the process may lock too little.
  if (link.isOk() && (*link)->traits().carriesWords()) {
    PEERLANE_RETURN_IF_ERROR(slabs_.make());
    if (Status granted = slabs_.grantOver(**link); !granted.isOk()) link = std::move(granted);
  }
  isMade = link.isOk();
  // A shortage passes, as for the offers.
  if (link.status().code() == Code::kUnavailable && !carriesWords())
    return link.status().withContext("link " + name);
  if (!isMade) return refuseFailed(name, link.status());
  if ((*link)->traits().isFallback) env_.around.metrics.fallbacks().add();
  links_.add(std::move(*link));
  return Status::ok();
}

Status LinkNegotiation::sendMade() {
  PEERLANE_RETURN_IF_ERROR(refuseMissed());
  control::Accepted made;
  for (const Link* link : links_.live()) made.links.push_back(link->traits().transport);
  made.refused = links_.refused();
  return env_.connection->send(std::move(made));
}

Status LinkNegotiation::refuseFailed(const std::string& name, const Status& why) {
  if (isLacking(why)) curable_.insert(name);
  refuse(name, std::string(why.message()));
  return goOnWithout(name, why);
}

Status LinkNegotiation::goOnWithout(const std::string& name, const Status& why) {
  PEERLANE_LOG_WARN("peer {}: link {} refused: {}", env_.number, name, why.toString());
  env_.around.metrics.fallbacks().add();
  if (!env_.around.config.strict) return Status::ok();
  // To connect again does not help where this side lacks something.
  const Status end = isLacking(why) ? Status(Code::kNotSupported, std::string(why.message())) : why;
  return end.withContext("PEERLANE_STRICT: link " + name);
}

Status LinkNegotiation::askForTheRest(Offered offered) {
  askedForMore_ = true;
  offeredBefore_ = std::move(offered);
  return env_.connection->send(control::Accepted{{}, links_.refused()});
}

Status LinkNegotiation::offerTheRest() {
  PEERLANE_RETURN_IF_ERROR(sendOffers(/*all=*/true));
  hasMore_ = false;
  return isToBlame(pending_, curable_, offers_) ? noLink(offers_) : Status::ok();
}

bool LinkNegotiation::offersLink() const {
  const auto& transports = env_.around.transports;
  return std::any_of(transports.begin(), transports.end(), [&](const auto& transport) {
    return transport->abilities().canAny(MemoryPlace::kHost, Ability::kAttaches) &&
           pending_.contains(std::string(transport->name()));
  });
}

Status LinkNegotiation::noLink(const Offered& offered) const {
  const Config& config = env_.around.config;
  std::string why = "no link works between the two";
  std::string others;
  bool isCurable = false;
  for (const control::Refusal& refusal : links_.refused()) {
    const Transport* const transport = transportOf(refusal.transport);
    const bool isCause = transport != nullptr && curable_.contains(refusal.transport) &&
                         transport->abilities().canAny(MemoryPlace::kHost, Ability::kAttaches);
    (isCause ? why : others) += "; " + refusal.transport + ": " + refusal.reason;
    isCurable |= isCause;
  }
  why += others;
  // That link is wanted: to allow another one is no cure, which may not even encrypt.
  if (isCurable) return Status(Code::kNotSupported, why);
  std::vector<std::string> forbidden;  // here, by the settings alone
  std::vector<std::string> offeredOnly;
  for (const auto& transport : env_.around.transports) {
    const std::string name(transport->name());
    if (!transport->abilities().canAny(MemoryPlace::kHost, Ability::kAttaches) ||
        config.allowsLink(transport->family()) || name != transport->family() ||
        (transport->scope() == LinkScope::kProcess && !process_.facts().sameProcess))
      continue;
    forbidden.push_back(name);
    if (offered.contains(name)) offeredOnly.push_back(name);
  }
  if (forbidden.empty()) return Status(Code::kNotSupported, why);
  // The sentence is read on both sides, so neither is "this".
  why += "; PEERLANE_LINKS (Config::links) of process " + std::to_string(getpid()) + " is " +
         fmt::format("{}", fmt::join(config.links, ",")) + ": allow ";
  why += offeredOnly.empty()
             ? fmt::format("{}", fmt::join(forbidden, " or ")) + " on both sides"
             : fmt::format("{}", fmt::join(offeredOnly, " or ")) + ", which the other side offers";
  why += ", or leave it unset";
  return Status(Code::kNotSupported, why);
}

Status LinkNegotiation::handle(control::Accepted& message) {
  if (!env_.initiator && message.links.empty() && !links_.isMade() && hasMore_)
    return offerTheRest();
  return env_.initiator ? keepMade(message) : makeChosen(message);
}

// The acceptor. What it cannot make, the initiator gives up when it reads the answer.
Status LinkNegotiation::makeChosen(const control::Accepted& message) {
  if (isAgreed_) return Status(Code::kCorrupt, "link choices came twice");
  for (const std::string& name : message.links) {
    auto theirs = offers_.find(name);
    if (links_.isMade() || !pending_.contains(name) || theirs == offers_.end())
      return Status(Code::kCorrupt, "the peer accepted link '" + name + "', which was not offered");
    Offer offer = std::move(theirs->second);
    offers_.erase(theirs);
    bool isMade = false;
    PEERLANE_RETURN_IF_ERROR(complete(name, std::move(offer), isMade));
  }
  links_.open();
  if (!links_.isMade()) {
    takeRefusals(message.refused);
    return noLink(offers_);
  }
  isAgreed_ = true;
  // Before the peer's own reasons are taken over: it knows these.
  PEERLANE_RETURN_IF_ERROR(sendMade());
  takeRefusals(message.refused);
  // Of these the peer knows nothing.
  for (const auto& transport : env_.around.transports) {
    const std::string name(transport->name());
    if (pending_.contains(name) && !offers_.contains(name) && !links_.isRefused(name))
      refuse(name, "not offered by the peer");
  }
  return Status::ok();
}

// The initiator.
Status LinkNegotiation::keepMade(const control::Accepted& message) {
  if (!isChosen_ || isAgreed_) return Status(Code::kCorrupt, "link choices came out of turn");
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::vector<std::string> made;
  for (const Link* link : links_.live()) made.push_back(link->traits().transport);
  for (const std::string& name : message.links)
    if (!has(made, name))
      return Status(Code::kCorrupt, "the peer made link '" + name + "', which was not accepted");
  for (const std::string& name : made) {
    if (has(message.links, name)) continue;
    std::string why = "the peer could not make it";
    for (const control::Refusal& refusal : message.refused)
      if (refusal.transport == name) why += ": " + refusal.reason;
    links_.drop(name);
    PEERLANE_RETURN_IF_ERROR(refuseFailed(name, Status(Code::kNotSupported, std::move(why))));
  }
  takeRefusals(message.refused);
  links_.open();
  isAgreed_ = true;
  return links_.isMade() ? Status::ok() : noLink();
}

void LinkNegotiation::takeRefusals(const std::vector<control::Refusal>& refusals) {
  for (const control::Refusal& refusal : refusals)
    if (!links_.isRefused(refusal.transport) && links_.named(refusal.transport) == nullptr)
      refuse(refusal.transport, refusal.reason);
}

}  // namespace peerlane
