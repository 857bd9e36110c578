// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_dialer.h"

#include <span>
#include <string>
#include <utility>

#include "peerlane/core/text.h"
#include "peerlane/os/socket.h"

namespace peerlane {

TcpDialer::TcpDialer(EventLoop& loop, Order order, Done done)
    : loop_(loop), order_(std::move(order)), done_(std::move(done)) {
  // From the loop, so that `done` is never called inside this constructor.
  start_ = loop_.after({}, [this] { dialNext(); });
}

void TcpDialer::dialNext() {
  watch_ = Watch();
  socket_.reset();
  connected_ = false;
  received_ = 0;
  if (next_ == order_.addresses.size()) return finish(lastFailure_);
  // An address behind which nobody answers must not cost the others their turn.
  const auto share = order_.patience / static_cast<int64_t>(order_.addresses.size());
  limit_ = loop_.after(share, [this, share] {
    attemptFailed(Status(Code::kTimeout, "no answer within " + formatDuration(share) +
                                             ", its share of PEERLANE_CONNECT_TIMEOUT"));
  });
  Result<Fd> socket = connectStart(order_.addresses[next_++]);
  if (!socket) return attemptFailed(socket.status());
  socket_ = std::move(socket).value();
  Result<Watch> watch = loop_.watch(socket_.get(), false, true, [this] { onReady(); });
  if (!watch) return attemptFailed(watch.status());
  watch_ = std::move(watch).value();
}

void TcpDialer::onReady() {
  if (connected_)
    onGreeting();
  else
    onConnected();
}

void TcpDialer::onConnected() {
  const Status result = connectResult(socket_.get());
  if (result.code() == Code::kTryAgain) return;
  if (!result.isOk()) return attemptFailed(result);
  connected_ = true;
  const TcpGreeting greeting = encodeTcpGreeting(order_.present);
  Result<size_t> sent = sendSome(socket_.get(), greeting);
  if (!sent) return attemptFailed(sent.status());
  // A fresh socket has room for 40 bytes.
  if (*sent != greeting.size())
    return attemptFailed(Status(Code::kUnavailable, "the socket took half a greeting"));
  watch_.setInterest(true, false);
}

void TcpDialer::onGreeting() {
  const std::span<std::byte> space = std::span(greeting_).subspan(received_);
  Result<size_t> bytes = recvSome(socket_.get(), space);
  if (!bytes) {
    if (bytes.status().code() != Code::kTryAgain) attemptFailed(bytes.status());
    return;
  }
  if (*bytes == 0)
    return attemptFailed(Status(Code::kPeerLost,
                                "the listener closed the connection; it does not "
                                "know our token, or waits no longer"));
  received_ += *bytes;
  if (received_ < greeting_.size()) return;
  Result<TcpCard> card = parseTcpGreeting(greeting_);
  if (!card) return attemptFailed(card.status());
  if (!sameCard(*card, order_.expect))
    return attemptFailed(Status(Code::kPermissionDenied, "the listener presented a wrong token"));
  watch_ = Watch();
  finish(std::move(socket_));
}

void TcpDialer::attemptFailed(const Status& why) {
  lastFailure_ =
      why.withContext("tcp data connection to " + order_.addresses[next_ - 1].toString());
  watch_ = Watch();
  limit_.cancel();
  socket_.reset();
  start_ = loop_.after({}, [this] { dialNext(); });
}

void TcpDialer::finish(Result<Fd> result) {
  watch_ = Watch();
  start_.cancel();
  limit_.cancel();
  const Done done = std::move(done_);  // may destroy this object
  done(std::move(result));
}

}  // namespace peerlane
