// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_transport.h"

#include <sched.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/core/log.h"
#include "peerlane/core/metrics.h"
#include "peerlane/program/cpu/copy_team.h"
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

// The cipher that both sides have offered, the quicker one first; none where neither encrypts.
// kInvalidArgument names the side and the cure; the sentence is read on both sides, so neither is
// "this".
Result<std::optional<AeadCipher>> agreeOnCipher(uint8_t dialler, uint8_t listener) {
  if ((dialler != 0) != (listener != 0))
    return Status(Code::kInvalidArgument,
                  std::string("PEERLANE_TCP_ENCRYPT is ") + (dialler != 0 ? "1" : "0") +
                      " on the side that connected and " + (listener != 0 ? "1" : "0") +
                      " on the side that listened: set the same value on both");
  if (dialler == 0) return std::optional<AeadCipher>();
  for (const AeadCipher cipher : {AeadCipher::kAes256Gcm, AeadCipher::kChaCha20Poly1305})
    if ((dialler & listener & static_cast<uint8_t>(cipher)) != 0) return std::optional(cipher);
  return Status(Code::kInvalidArgument,
                "PEERLANE_TCP_ENCRYPT is 1 on both sides, which have no cipher in common: use the "
                "same version of Peerlane on both, or set 0 on both");
}

// One for each socket: nothing, where there is no cipher.
std::vector<std::optional<StreamKeys>> keysOf(std::optional<AeadCipher> cipher,
                                              const LinkSecrets& secrets, uint32_t sockets,
                                              bool dials) {
  std::vector<std::optional<StreamKeys>> keys(sockets);
  if (cipher)
    for (uint32_t socket = 0; socket < sockets; ++socket)
      keys[socket] = streamKeys(secrets, *cipher, socket, dials);
  return keys;
}

// What this side brings to a link.
struct TcpMeans {
  uint8_t ciphers = 0;  // as TcpOffer
  uint32_t sockets = 1;
};

TcpOffer offerWith(const TcpMeans& means, const TcpToken& token) {
  TcpOffer offer;
  offer.token = token;
  offer.ciphers = means.ciphers;
  offer.sockets = means.sockets;
  return offer;
}

// The side that dialled the control connection.
class DialingLink final : public PendingLink {
 public:
  DialingLink(PeerFacts facts, LinkSurroundings surroundings, const TcpMeans& means)
      : facts_(std::move(facts)),
        surroundings_(std::move(surroundings)),
        means_(means),
        token_(makeTcpToken()) {}

  Offer takeOffer() override { return offerOf(offerWith(means_, token_)); }

  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    PEERLANE_ASSIGN(const TcpOffer offer, parseTcpOffer(peerOffer.blob));
    PEERLANE_ASSIGN(const auto cipher, agreeOnCipher(means_.ciphers, offer.ciphers));
    const auto keys = keysOf(cipher, {facts_.linkKey, token_, offer.token},
                             std::min(means_.sockets, offer.sockets), /*dials=*/true);
    if (offer.port == 0) return Status(Code::kCorrupt, "tcp: the peer offers no port to dial");
    // Ends before the whole set-up does, so that the reason is known.
    TcpLink::Route route{.addresses = addresses(offer),
                         .present = offer.token,
                         .expect = token_,
                         .patience = surroundings_.config.connectTimeout * 3 / 4};
    auto link = std::make_unique<TcpLink>(
        surroundings_, "tcp link to " + route.addresses.front().toString(), keys);
    link->dial(std::move(route));
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
  const TcpMeans means_;
  const TcpToken token_;
};

// The side that listens. Data connections may come before the peer's offer does.
class AwaitingLink final : public PendingLink {
 public:
  AwaitingLink(std::shared_ptr<TcpListener> listener, const PeerFacts& facts,
               LinkSurroundings surroundings, const TcpMeans& means)
      : listener_(std::move(listener)),
        linkKey_(facts.linkKey),
        surroundings_(std::move(surroundings)),
        means_(means),
        token_(makeTcpToken()) {
    const auto sockets = static_cast<uint16_t>(means_.sockets);
    for (uint16_t socket = 0; socket < sockets; ++socket) {
      const auto state = std::make_shared<State>();
      awaited_.push_back({state, listener_->expect(cardOf(token_, socket), [state](Fd arrived) {
                            if (state->connection != nullptr)
                              state->connection->socketArrived(std::move(arrived));
                            else
                              state->early = std::move(arrived);
                          })});
    }
  }

  Offer takeOffer() override {
    TcpOffer offer = offerWith(means_, token_);
    offer.port = listener_->address().port();
    if (!listener_->address().isWildcard()) offer.addresses = {listener_->address().ip()};
    return offerOf(offer);
  }

  Result<std::unique_ptr<Link>> complete(Offer peerOffer) override {
    PEERLANE_ASSIGN(const TcpOffer offer, parseTcpOffer(peerOffer.blob));
    PEERLANE_ASSIGN(const auto cipher, agreeOnCipher(offer.ciphers, means_.ciphers));
    const auto keys = keysOf(cipher, {linkKey_, offer.token, token_},
                             std::min(means_.sockets, offer.sockets), /*dials=*/false);
    auto link = std::make_unique<TcpLink>(
        surroundings_, "tcp link from a peer at " + listener_->address().toString(), keys);
    awaited_.resize(link->sockets());  // the dialler wants no more
    const auto sockets = static_cast<uint16_t>(link->sockets());
    for (uint16_t socket = 0; socket < sockets; ++socket) {
      Awaited& awaited = awaited_[socket];
      TcpConnection& connection = link->connection(socket);
      awaited.state->connection = &connection;
      connection.await(std::move(awaited.state->early), std::move(awaited.expectation),
                       cardOf(offer.token, socket));
    }
    return std::unique_ptr<Link>(std::move(link));
  }

 private:
  // Shared with the expectation, which moves on to the connection and ends with it.
  struct State {
    Fd early;
    TcpConnection* connection = nullptr;
  };
  struct Awaited {
    std::shared_ptr<State> state;
    std::unique_ptr<TcpListener::Expectation> expectation;
  };

  const std::shared_ptr<TcpListener> listener_;
  const KeyBytes linkKey_;
  const LinkSurroundings surroundings_;
  const TcpMeans means_;
  const TcpToken token_;
  std::vector<Awaited> awaited_;  // one for each socket
};

// One for four cores that this process may use. With more, bytes wander between the caches of more
// cores.
uint32_t helpersHere() {
  constexpr uint32_t kMost = 3;
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof cores, &cores) != 0) return 0;
  return std::min<uint32_t>(kMost, static_cast<uint32_t>(CPU_COUNT(&cores)) / 4);
}

class TcpTransport final : public Transport {
 public:
  std::string_view name() const override { return "tcp"; }
  LinkScope scope() const override { return LinkScope::kNetwork; }
  LinkAbilities abilities() const override { return TcpLink::abilities(); }
  Result<std::unique_ptr<PendingLink>> prepare(const PeerFacts& facts,
                                               const LinkSurroundings& surroundings) override;

 private:
  // Threads that help to poll the sockets of a link, to seal and to open, where the program gave
  // none that help with copies. Null: there are too few cores.
  cpu::CopyTeam* helpers();

  const uint32_t mostHelpers_ = helpersHere();
  Metrics ownCounts_;  // that is no copying, so nobody reads them
  std::unique_ptr<cpu::CopyTeam, cpu::CopyTeam::End> helpers_;
  // By the local IP of control connections: data comes in where control does, and nowhere else.
  std::map<std::string, std::shared_ptr<TcpListener>> listeners_;
};

cpu::CopyTeam* TcpTransport::helpers() {
  if (helpers_ || mostHelpers_ == 0) return helpers_.get();
  auto team = cpu::CopyTeam::create(mostHelpers_, ownCounts_);
  if (team)
    helpers_ = std::move(*team);
  else
    PEERLANE_LOG_INFO("no threads help with tcp: {}", team.status().message());
  return helpers_.get();
}

Result<std::unique_ptr<PendingLink>> TcpTransport::prepare(const PeerFacts& facts,
                                                           const LinkSurroundings& surroundings) {
  TcpMeans means;
  means.sockets = surroundings.config.tcpSockets;
  if (means.sockets == 0) means.sockets = 1 + mostHelpers_;
  LinkSurroundings around = surroundings;
  if (around.config.tcpEncrypt) {
    Result<uint8_t> here = aeadCiphersHere();
    if (!here)
      return Status(Code::kInvalidArgument,
                    "PEERLANE_TCP_ENCRYPT is 1 on a side that cannot encrypt: install what is "
                    "missing there, or set 0 on both: " +
                        std::string(here.status().message()));
    means.ciphers = *here;
  }
  if (around.copyTeam == nullptr && (means.sockets > 1 || means.ciphers != 0))
    around.copyTeam = helpers();
  if (facts.initiator)
    return std::unique_ptr<PendingLink>(std::make_unique<DialingLink>(facts, around, means));
  const bool byIp = !facts.unixSocket && facts.localAddress.isIp();
  const std::string ip = byIp ? facts.localAddress.ip() : kSameHost;
  std::shared_ptr<TcpListener>& listener = listeners_[ip];
  if (!listener) {
    PEERLANE_ASSIGN(const SocketAddress address, SocketAddress::fromIp(ip, 0));
    PEERLANE_ASSIGN(listener,
                    TcpListener::create(surroundings.loop, address, surroundings.config.ports,
                                        surroundings.config.connectTimeout));
  }
  return std::unique_ptr<PendingLink>(
      std::make_unique<AwaitingLink>(listener, facts, around, means));
}

}  // namespace

std::unique_ptr<Transport> makeTcpTransport() {
  return std::make_unique<TcpTransport>();
}

}  // namespace peerlane
