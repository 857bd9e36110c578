// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_transport.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/transport/tcp/tcp_link.h"
#include "peerlane/transport/tcp/tcp_listener.h"
#include "peerlane/transport/tcp/tcp_offer.h"

namespace peerlane {
namespace {

// A Unix control connection names no IP; both ends share the host.
constexpr const char* kSameHost = "127.0.0.1";

Offer offerOf(const TcpOffer& offer) {
  Offer out;
  out.blob = encodeTcpOffer(offer);
  return out;
}

// The side that dialled the control connection.
class DialingLink final : public PendingLink {
 public:
  DialingLink(PeerFacts facts, LinkSurroundings surroundings)
      : facts_(std::move(facts)), surroundings_(std::move(surroundings)), token_(makeTcpToken()) {}

  Offer takeOffer() override {
    TcpOffer offer;
    offer.token = token_;
    return offerOf(offer);
  }

  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    PEERLANE_ASSIGN(const TcpOffer offer, parseTcpOffer(peerOffer.blob));
    if (offer.port == 0) return Status(Code::kCorrupt, "tcp: the peer offers no port to dial");
    TcpDialer::Order order{.addresses = addresses(offer),
                           .present = offer.token,
                           .expect = token_,
                           .patience = surroundings_.config.connectTimeout};
    auto link = std::make_unique<TcpLink>(surroundings_,
                                          "tcp link to " + order.addresses.front().toString());
    link->dial(std::move(order));
    return std::unique_ptr<Link>(std::move(link));
  }

 private:
  // The address of the control connection is known to work; the addresses that the peer names come
  // after it.
  std::vector<SocketAddress> addresses(const TcpOffer& offer) const {
    std::vector<SocketAddress> found;
    if (!facts_.unixSocket && facts_.remoteAddress.isIp())
      found.push_back(facts_.remoteAddress.withPort(offer.port));
    else if (Result<SocketAddress> here = SocketAddress::fromIp(kSameHost, offer.port))
      found.push_back(*here);
    for (const std::string& ip : offer.addresses) {
      Result<SocketAddress> address = SocketAddress::fromIp(ip, offer.port);
      if (address && std::find(found.begin(), found.end(), *address) == found.end())
        found.push_back(*address);
    }
    return found;
  }

  const PeerFacts facts_;
  const LinkSurroundings surroundings_;
  const TcpToken token_;
};

// The side that listens. The data connection may come before the peer's offer does.
class AwaitingLink final : public PendingLink {
 public:
  AwaitingLink(std::shared_ptr<TcpListener> listener, LinkSurroundings surroundings)
      : listener_(std::move(listener)),
        surroundings_(std::move(surroundings)),
        token_(makeTcpToken()) {
    expectation_ = listener_->expect(token_, [state = state_](Fd socket) {
      if (state->link != nullptr)
        state->link->socketArrived(std::move(socket));
      else
        state->early = std::move(socket);
    });
  }

  Offer takeOffer() override {
    TcpOffer offer;
    offer.token = token_;
    offer.port = listener_->address().port();
    if (!listener_->address().isWildcard()) offer.addresses = {listener_->address().ip()};
    return offerOf(offer);
  }

  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    PEERLANE_ASSIGN(const TcpOffer offer, parseTcpOffer(peerOffer.blob));
    auto link = std::make_unique<TcpLink>(
        surroundings_, "tcp link from a peer at " + listener_->address().toString());
    state_->link = link.get();
    link->await(std::move(state_->early), std::move(expectation_), offer.token);
    return std::unique_ptr<Link>(std::move(link));
  }

 private:
  // Shared with the expectation, which moves on to the link and ends with it.
  struct State {
    Fd early;
    TcpLink* link = nullptr;
  };

  const std::shared_ptr<TcpListener> listener_;
  const LinkSurroundings surroundings_;
  const TcpToken token_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::unique_ptr<TcpListener::Expectation> expectation_;
};

class TcpTransport final : public Transport {
 public:
  std::string_view name() const override { return "tcp"; }
  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& surroundings) override;

 private:
  // By the local IP of control connections: data comes in where control does, and nowhere else.
  std::map<std::string, std::shared_ptr<TcpListener>> listeners_;
};

Result<std::unique_ptr<PendingLink>> TcpTransport::prepare(const PeerFacts& facts,
                                                           const LinkSurroundings& surroundings) {
  if (facts.initiator)
    return std::unique_ptr<PendingLink>(std::make_unique<DialingLink>(facts, surroundings));
  const bool byIp = !facts.unixSocket && facts.localAddress.isIp();
  const std::string ip = byIp ? facts.localAddress.ip() : kSameHost;
  std::shared_ptr<TcpListener>& listener = listeners_[ip];
  if (!listener) {
    PEERLANE_ASSIGN(const SocketAddress address, SocketAddress::fromIp(ip, 0));
    PEERLANE_ASSIGN(listener,
                    TcpListener::create(surroundings.loop, address, surroundings.config.ports,
                                        surroundings.config.connectTimeout));
  }
  return std::unique_ptr<PendingLink>(std::make_unique<AwaitingLink>(listener, surroundings));
}

}  // namespace

std::unique_ptr<Transport> makeTcpTransport() {
  return std::make_unique<TcpTransport>();
}

}  // namespace peerlane
