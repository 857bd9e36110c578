// SPDX-License-Identifier: Apache-2.0
#include "peerlane/session/peer/link_negotiation.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "peerlane/core/log.h"

namespace peerlane {
namespace {

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += between;
    text += word;
  }
  return text;
}

}  // namespace

Status LinkNegotiation::begin() {
  if (!env_.initiator && process_.facts().unixSocket) return Status::ok();
  return sendOffers(/*all=*/true);
}

void LinkNegotiation::end() {
  pending_.clear();
  offers_.clear();
}

// On one host the best link almost always works, and another one may open a door that nobody needs
// (tcp: a listener that every user of the host can reach). So an acceptor there offers the best one
// first, and the rest, `all`, to a peer that can use none of it.
Status LinkNegotiation::sendOffers(bool all) {
  Progress& progress = env_.around.progress;
  const LinkSurroundings surroundings{env_.around.config,
                                      progress.loop(),
                                      progress.bell(),
                                      env_.around.regions,
                                      [&progress] { progress.nudge(); },
                                      [&progress] { progress.countWakeup(); },
                                      env_.around.copier.team()};
  control::Offers offers;
  std::vector<Fd> fds;
  for (const auto& transport : env_.around.transports) {
    const std::string name(transport->name());
    if (pending_.contains(name) || links_.isRefused(name)) continue;
    if (!env_.around.config.allowsLink(name)) {
      links_.refuse(name, "not among PEERLANE_LINKS");
      continue;
    }
    if (!all && !transport->forDevices() && offersLink()) {
      offers.more = true;
      continue;
    }
    auto pending = transport->prepare(process_.facts(), surroundings);
    if (!pending.isOk()) {
      // A shortage passes; a pair that took a worse link for it would stay with that.
      if (pending.status().code() == Code::kUnavailable && !offersLink())
        return pending.status().withContext("link " + name);
      links_.refuse(name, std::string(pending.status().message()));
      continue;
    }
    Offer offer = (*pending)->takeOffer();
    offers.links.push_back({name, std::move(offer.blob), static_cast<uint32_t>(offer.fds.size())});
    for (Fd& fd : offer.fds) fds.push_back(std::move(fd));
    pending_[name] = std::move(*pending);
  }
  // An empty list would leave the initiator to guess. Its offers are answered with the reason.
  if (!env_.initiator && !offersLink()) return Status::ok();
  hasMore_ = offers.more;
  return env_.connection->send(std::move(offers), std::move(fds));
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
  if (links_.isMade() || !offers_.empty()) return Status(Code::kCorrupt, "link offers came twice");
  if (!env_.initiator && process_.facts().unixSocket)
    PEERLANE_RETURN_IF_ERROR(sendOffers(/*all=*/false));
  PEERLANE_ASSIGN(Offered offered, take(message));
  if (env_.initiator) return choose(std::move(offered), message.more);
  if (!offersLink()) {
    Status status = noLink(offered);
    PEERLANE_LOG_WARN("peer {}: {}", env_.number, status.message());  // nobody calls for him
    return status;
  }
  offers_ = std::move(offered);
  return Status::ok();
}

Status LinkNegotiation::choose(Offered offered, bool peerHasMore) {
  std::vector<std::string> notOffered;
  const auto refuseThose = [&] {
    for (const std::string& name : notOffered) links_.refuse(name, "not offered by the peer");
  };
  for (const auto& transport : env_.around.transports) {
    if (transport->forDevices()) continue;
    const std::string name(transport->name());
    auto theirs = offered.find(name);
    if (!pending_.contains(name)) continue;
    if (theirs == offered.end()) {
      notOffered.push_back(name);
      continue;
    }
    auto link = pending_[name]->complete(std::move(theirs->second));
    if (link.status().code() == Code::kUnavailable)  // as for the offers
      return link.status().withContext("link " + name);
    if (!link.isOk()) {
      pending_.erase(name);
      PEERLANE_RETURN_IF_ERROR(refuseFailed(name, link.status()));
      continue;
    }
    links_.setHost(std::move(*link));
    refuseThose();
    if (links_.host().traits().isFallback) env_.around.metrics.fallbacks().add();
    PEERLANE_RETURN_IF_ERROR(completeDevice(offered));
    return env_.connection->send(control::Accepted{name, {}, links_.refused()});
  }
  if (peerHasMore && !askedForMore_) return askForTheRest(std::move(offered));
  refuseThose();
  return noLink(offered);
}

Status LinkNegotiation::refuseFailed(const std::string& name, const Status& why) {
  links_.refuse(name, std::string(why.message()));
  PEERLANE_LOG_WARN("peer {}: link {} refused: {}", env_.number, name, why.toString());
  env_.around.metrics.fallbacks().add();
  if (env_.around.config.strict) return why.withContext("PEERLANE_STRICT: link " + name);
  return Status::ok();
}

Status LinkNegotiation::askForTheRest(Offered offered) {
  askedForMore_ = true;
  offeredBefore_ = std::move(offered);
  return env_.connection->send(control::Accepted{"", {}, links_.refused()});
}

Status LinkNegotiation::offerTheRest() {
  PEERLANE_RETURN_IF_ERROR(sendOffers(/*all=*/true));
  hasMore_ = false;
  return Status::ok();
}

bool LinkNegotiation::offersLink() const {
  const auto& transports = env_.around.transports;
  return std::any_of(transports.begin(), transports.end(), [&](const auto& transport) {
    return !transport->forDevices() && pending_.contains(std::string(transport->name()));
  });
}

Status LinkNegotiation::noLink(const Offered& offered) const {
  const Config& config = env_.around.config;
  std::string why = "no link works between the two";
  for (const control::Refusal& refusal : links_.refused())
    why += "; " + refusal.transport + ": " + refusal.reason;
  std::vector<std::string> forbidden;  // here, by the settings
  std::vector<std::string> offeredOnly;
  for (const auto& transport : env_.around.transports) {
    const std::string name(transport->name());
    if (transport->forDevices() || config.allowsLink(name)) continue;
    forbidden.push_back(name);
    if (offered.contains(name)) offeredOnly.push_back(name);
  }
  if (forbidden.empty()) return Status(Code::kUnavailable, why);
  // The sentence is read on both sides, so neither is "this".
  why += "; PEERLANE_LINKS (Config::links) of process " + std::to_string(getpid()) + " is " +
         joined(config.links, ",") + ": allow ";
  why += offeredOnly.empty() ? joined(forbidden, " or ") + " on both sides"
                             : joined(offeredOnly, " or ") + ", which the other side offers";
  why += ", or leave it unset";
  return Status(Code::kUnavailable, why);
}

Status LinkNegotiation::handle(control::Accepted& message) {
  if (message.transport.empty() && !env_.initiator && !links_.isMade() && hasMore_)
    return offerTheRest();
  auto mine = pending_.find(message.transport);
  auto theirs = offers_.find(message.transport);
  if (env_.initiator || links_.isMade() || mine == pending_.end() || theirs == offers_.end())
    return Status(Code::kCorrupt,
                  "the peer accepted link '" + message.transport + "', which was not offered");
  PEERLANE_ASSIGN(auto link, mine->second->complete(std::move(theirs->second)));
  links_.setHost(std::move(link));
  if (links_.host().traits().isFallback) env_.around.metrics.fallbacks().add();
  for (control::Refusal& refusal : message.refused)
    if (!links_.isRefused(refusal.transport))
      links_.refuse(std::move(refusal.transport), std::move(refusal.reason));
  return completeDevice(offers_);
}

// Beside the link that was chosen: memory of devices, where both sides have some.
Status LinkNegotiation::completeDevice(Offered& offers) {
  links_.setDevicesAdd(!env_.around.devices.empty() || offers.contains("cuda_ipc"));
  for (const auto& transport : env_.around.transports) {
    if (!transport->forDevices()) continue;
    const std::string name(transport->name());
    auto mine = pending_.find(name);
    auto theirs = offers.find(name);
    if (mine == pending_.end()) continue;
    if (theirs == offers.end()) {
      links_.refuse(name, "not offered by the peer");
      continue;
    }
    auto link = mine->second->complete(std::move(theirs->second));
    if (link.isOk()) {
      links_.setDevice(std::move(*link));
      return Status::ok();
    }
    PEERLANE_RETURN_IF_ERROR(refuseFailed(name, link.status()));
  }
  return Status::ok();
}

}  // namespace peerlane
