// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_listener.h"

#include <span>
#include <string>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/socket.h"

namespace peerlane {

TcpListener::Expectation::Expectation(std::shared_ptr<TcpListener> listener, const TcpCard& card,
                                      Arrived arrived)
    : listener_(std::move(listener)), card_(card), arrived_(std::move(arrived)) {
  listener_->expectations_.push_back(this);
}

TcpListener::Expectation::~Expectation() {
  if (listener_->expectations_.remove(this) == 0) return;
  if (listener_->ended_.size() == kMostEnded) listener_->ended_.pop_front();
  listener_->ended_.push_back(card_);
}

TcpListener::TcpListener(EventLoop& loop, SocketAddress address, std::chrono::nanoseconds patience)
    : loop_(loop), address_(address), patience_(patience) {}

TcpListener::~TcpListener() = default;

Result<std::shared_ptr<TcpListener>> TcpListener::create(EventLoop& loop,
                                                         const SocketAddress& address,
                                                         PortRange ports,
                                                         std::chrono::nanoseconds patience) {
  Result<Fd> socket = ports.last != 0 ? listenInRange(address, ports.first, ports.last)
                                      : listenOn(address.withPort(0));
  if (!socket) return socket.status().withContext("tcp data listener");
  PEERLANE_ASSIGN(const SocketAddress bound, localAddress(socket->get()));
  std::shared_ptr<TcpListener> listener(new TcpListener(loop, bound, patience));
  TcpListener* self = listener.get();
  PEERLANE_ASSIGN(
      listener->acceptor_,
      Acceptor::create(loop, std::move(socket).value(), "tcp data listener " + bound.toString(),
                       {.connection = [self](Fd guest) { self->welcome(std::move(guest)); }}));
  return listener;
}

std::unique_ptr<TcpListener::Expectation> TcpListener::expect(const TcpCard& card,
                                                              Arrived arrived) {
  return std::make_unique<Expectation>(shared_from_this(), card, std::move(arrived));
}

void TcpListener::welcome(Fd socket) {
  Result<SocketAddress> from = peerAddress(socket.get());
  const std::string name = from ? from->toString() : "somebody";
  auto place = places_.admit(from ? from->ip() : name);
  if (!place) {
    if (strangers_.allows())
      PEERLANE_LOG_WARN("tcp data listener {}: turned {} away: {}{}", address_.toString(), name,
                        place.status().message(), strangers_.leftOut());
    return;
  }
  const GuestAt guest = guests_.emplace(guests_.end());
  guest->place = std::move(*place);
  guest->socket = std::move(socket);
  guest->from = name;
  Result<Watch> watch =
      loop_.watch(guest->socket.get(), true, false, [this, guest] { onGuest(guest); });
  if (!watch) return dismiss(guest, std::string(watch.status().message()));
  guest->watch = std::move(watch).value();
  guest->timer =
      loop_.after(patience_, [this, guest] { dismiss(guest, "no token in the time given"); });
}

void TcpListener::onGuest(GuestAt guest) {
  const std::span<std::byte> space = std::span(guest->greeting).subspan(guest->received);
  Result<size_t> bytes = recvSome(guest->socket.get(), space);
  if (!bytes) {
    if (bytes.status().code() != Code::kTryAgain)
      dismiss(guest, std::string(bytes.status().message()));
    return;
  }
  if (*bytes == 0) return leave(guest);
  guest->received += *bytes;
  if (guest->received == guest->greeting.size()) identify(guest);
}

void TcpListener::identify(GuestAt guest) {
  Result<TcpCard> card = parseTcpGreeting(guest->greeting);
  if (!card) return dismiss(guest, std::string(card.status().message()));
  // Every waiting link is compared, so the time does not tell which one was close.
  Expectation* match = nullptr;
  for (Expectation* expectation : expectations_)
    if (sameCard(expectation->card_, *card)) match = expectation;
  if (match == nullptr && isOfEndedLink(*card)) {
    PEERLANE_LOG_DEBUG("tcp data listener {}: {} comes for a link that has ended meanwhile",
                       address_.toString(), guest->from);
    guests_.erase(guest);
    return;
  }
  if (match == nullptr) return dismiss(guest, "its token is not that of a waiting link");
  expectations_.remove(match);  // a token is good once
  guest->watch = Watch();
  Fd socket = std::move(guest->socket);
  guests_.erase(guest);
  const Arrived arrived = match->arrived_;  // may destroy the expectation and this listener
  arrived(std::move(socket));
}

// The sockets of one link come one after the other, and one side may close it in between.
bool TcpListener::isOfEndedLink(const TcpCard& card) const {
  bool is = false;
  for (const TcpCard& ended : ended_) is |= sameCard(ended, card);
  return is;
}

// Without a word: a peer that has changed its mind, or somebody who looks whether the port is open.
void TcpListener::leave(GuestAt guest) {
  if (guest->received != 0) return dismiss(guest, "it closed in the middle of its token");
  PEERLANE_LOG_DEBUG("tcp data listener {}: {} closed before it presented a token",
                     address_.toString(), guest->from);
  guests_.erase(guest);
}

void TcpListener::dismiss(GuestAt guest, const std::string& why) {
  if (strangers_.allows())
    PEERLANE_LOG_WARN("tcp data listener {}: closed a connection from {}: {}{}",
                      address_.toString(), guest->from, why, strangers_.leftOut());
  guests_.erase(guest);
}

}  // namespace peerlane
