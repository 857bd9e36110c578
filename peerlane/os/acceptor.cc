// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/acceptor.h"

#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/os/socket.h"

namespace peerlane {

Acceptor::Acceptor(EventLoop& loop, Fd listener, std::string name, Events events)
    : loop_(loop),
      listener_(std::move(listener)),
      name_(std::move(name)),
      events_(std::move(events)) {}

Result<std::unique_ptr<Acceptor>> Acceptor::create(EventLoop& loop, Fd listener, std::string name,
                                                   Events events) {
  std::unique_ptr<Acceptor> acceptor(
      new Acceptor(loop, std::move(listener), std::move(name), std::move(events)));
  Acceptor* self = acceptor.get();
  PEERLANE_ASSIGN(self->reserve_, duplicateFd(self->listener_.get()));
  PEERLANE_ASSIGN(self->watch_,
                  loop.watch(self->listener_.get(), true, false, [self] { self->onReady(); }));
  return acceptor;
}

void Acceptor::onReady() {
  for (int i = 0; i < kAtOnce; ++i) {
    Result<Fd> socket = acceptOne(listener_.get());
    if (socket) {
      events_.connection(std::move(*socket));
      continue;
    }
    if (socket.status().code() == Code::kTryAgain) return;
    // Without a free descriptor the kernel does not say whether a connection waits.
    const Status turned =
        socket.status().code() == Code::kUnavailable ? turnAway() : socket.status();
    if (turned.code() == Code::kTryAgain) return;
    if (lines_.allows())
      PEERLANE_LOG_WARN("{}: {}{}", name_, socket.status().message(), lines_.leftOut());
    if (!turned.isOk()) return pause();
  }
}

// Other threads open files, too: one of them may get the number that is given up here at once.
Status Acceptor::turnAway() {
  if (!reserve_) return Status(Code::kUnavailable, "no descriptor is kept back");
  reserve_.reset();
  Status accepted;
  {
    const Result<Fd> socket = acceptOne(listener_.get());
    accepted = socket.status();
    if (socket && events_.turnedAway) events_.turnedAway(socket->get());
  }
  if (auto again = duplicateFd(listener_.get())) reserve_ = std::move(*again);
  return accepted;
}

void Acceptor::pause() {
  watch_.setInterest(false, false);
  pause_ = loop_.after(kPause, [this] {
    if (!reserve_)
      if (auto again = duplicateFd(listener_.get())) reserve_ = std::move(*again);
    watch_.setInterest(true, false);
  });
}

}  // namespace peerlane
