// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_pipe.h"

#include <utility>

#include "peerlane/os/socket.h"

namespace peerlane {

void TcpPipe::adopt(Fd socket) {
  State& state = *state_;
  state.socket = std::move(socket);
  if (Status set = setNoDelay(state.socket.get()); !set.isOk()) return fail(std::move(set));
  Result<Watch> watch = loop_.watch(state.socket.get(), true, false, [&state] { state.onReady(); });
  if (!watch) return fail(watch.status());
  state.watch = std::move(watch).value();
  state.ready.store(true, std::memory_order_relaxed);
  state.up.store(true, std::memory_order_release);
}

void TcpPipe::fail(Status why) {
  state_->why = std::move(why);
  state_->failed.store(true, std::memory_order_release);
}

bool TcpPipe::writable() {
  return state_->up.load(std::memory_order_acquire) &&
         !state_->full.load(std::memory_order_relaxed);
}

Result<size_t> TcpPipe::write(std::span<const IoSlice> slices) {
  if (!state_->up.load(std::memory_order_acquire)) return size_t{0};
  Result<size_t> sent = sendVec(state_->socket.get(), slices);
  if (sent || sent.status().code() != Code::kTryAgain) return sent;
  state_->full.store(true, std::memory_order_relaxed);
  return size_t{0};
}

bool TcpPipe::readable() {
  return eagerReads_ > 0 || state_->ready.load(std::memory_order_relaxed) ||
         state_->failed.load(std::memory_order_relaxed);
}

Result<size_t> TcpPipe::read(std::span<const IoSlice> slices) {
  if (state_->failed.load(std::memory_order_acquire)) return state_->why;
  if (!state_->up.load(std::memory_order_acquire)) return size_t{0};
  Result<size_t> received = recvVec(state_->socket.get(), slices);
  if (received && *received != 0) {
    eagerReads_ = kEagerReads;
    return received;
  }
  if (received) return Status(Code::kPeerLost, "the peer closed the data socket");
  if (received.status().code() != Code::kTryAgain) return received;
  state_->ready.store(false, std::memory_order_relaxed);
  if (eagerReads_ > 0) --eagerReads_;
  return size_t{0};
}

void TcpPipe::refresh() {
  if (!state_->full.load(std::memory_order_relaxed)) return;
  if (state_->asked.exchange(true, std::memory_order_relaxed)) return;
  loop_.post([weak = std::weak_ptr<State>(state_)] {
    const std::shared_ptr<State> state = weak.lock();
    if (!state || !state->watch) return;
    state->armed = true;
    state->watch.setInterest(true, true);
  });
}

// It does not know which direction became ready: a write that still finds no room asks again.
void TcpPipe::State::onReady() {
  ready.store(true, std::memory_order_relaxed);
  if (!armed) return;
  armed = false;
  watch.setInterest(true, false);
  asked.store(false,
              std::memory_order_relaxed);  // before `full`: a refresh in between asks in vain
  full.store(false, std::memory_order_relaxed);
}

void TcpPipe::close() {
  if (!state_) return;
  state_->up.store(false, std::memory_order_relaxed);
  eagerReads_ = 0;
  // The watch ends before its descriptor, in the loop's thread. If the loop is gone before, the
  // function is dropped and takes both along.
  loop_.post([state = std::move(state_)] {
    state->watch = Watch();
    state->socket.reset();
  });
  state_ = std::make_shared<State>();
}

}  // namespace peerlane
