// SPDX-License-Identifier: Apache-2.0
//
// TcpListener: one listening socket of the tcp transport, shared by every link that waits for its
// data connection there. A connection that does not present the token of a waiting link within the
// time limit is closed; the other links are not disturbed. Confined to the loop's thread.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <list>
#include <memory>

#include "peerlane/core/config.h"
#include "peerlane/core/log_limit.h"
#include "peerlane/os/acceptor.h"
#include "peerlane/os/event_loop.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/guest_list.h"
#include "peerlane/os/socket_address.h"
#include "peerlane/transport/tcp/tcp_offer.h"

namespace peerlane {

class TcpListener : public std::enable_shared_from_this<TcpListener> {
 public:
  using Arrived = std::function<void(Fd)>;

  // Waits for one connection. Ends with its destruction; keeps the listener alive.
  class Expectation {
   public:
    Expectation(std::shared_ptr<TcpListener> listener, const TcpCard& card, Arrived arrived);
    ~Expectation();
    Expectation(const Expectation&) = delete;
    Expectation& operator=(const Expectation&) = delete;

   private:
    friend class TcpListener;
    std::shared_ptr<TcpListener> listener_;
    TcpCard card_;
    Arrived arrived_;
  };

  // Listens at the IP of `address`, on a port of `ports`. `loop` outlives the listener. A guest has
  // `patience` to present its token.
  static Result<std::shared_ptr<TcpListener>> create(EventLoop& loop, const SocketAddress& address,
                                                     PortRange ports,
                                                     std::chrono::nanoseconds patience);
  ~TcpListener();

  const SocketAddress& address() const { return address_; }

  // `arrived` gets the connected socket once, after its token was verified.
  std::unique_ptr<Expectation> expect(const TcpCard& card, Arrived arrived);

 private:
  // Bounds the tokens that are kept of links that ended before their sockets had all come.
  static constexpr size_t kMostEnded = 256;
  // Connections that have not presented a token yet. More than these are turned away.
  static constexpr GuestList::Limits kGuests{.inAll = 256, .ofOne = 64};

  struct Guest {
    GuestList::Place place;
    Fd socket;
    std::string from;
    TcpGreeting greeting{};
    size_t received = 0;
    Watch watch;
    Timer timer;
  };
  using GuestAt = std::list<Guest>::iterator;

  TcpListener(EventLoop& loop, SocketAddress address, std::chrono::nanoseconds patience);
  void welcome(Fd socket);
  void onGuest(GuestAt guest);
  void identify(GuestAt guest);
  bool isOfEndedLink(const TcpCard& card) const;
  void leave(GuestAt guest);
  void dismiss(GuestAt guest, const std::string& why);

  EventLoop& loop_;
  SocketAddress address_;
  std::chrono::nanoseconds patience_;
  std::list<Expectation*> expectations_;
  std::deque<TcpCard> ended_;  // expected in vain, the oldest first
  GuestList places_{kGuests};
  std::list<Guest> guests_;
  LogLimit strangers_;
  std::unique_ptr<Acceptor> acceptor_;
};

}  // namespace peerlane
