// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/tcp_pipe.h"

#include <utility>

#include "peerlane/core/text.h"
#include "peerlane/os/socket.h"

namespace peerlane {
namespace {

// Where the kernel gave up to wait for the other host, the connection is gone.
Status asLost(const Status& status) {
  if (status.code() != Code::kPeerSilent) return status;
  return Status(Code::kPeerLost,
                "the peer's host does not answer: " + std::string(status.message()));
}

}  // namespace

bool TcpPipe::adopt(Fd socket) {
  Status set = setNoDelay(socket.get());
  if (set.isOk()) set = setKeepAlive(socket.get(), patience_);
  Result<std::shared_ptr<ReadinessSet::Member>> member(Status(Code::kInternal, "not added"));
  if (set.isOk()) {
    member = readiness_.add(socket.get(), isOften_);
    set = member.status();
  }
  if (!set.isOk()) {
    fail(std::move(set));
    return false;
  }
  socket_ = std::move(socket);
  member_ = std::move(*member);
  up_.store(true, std::memory_order_seq_cst);
  isAwaited_.store(false, std::memory_order_release);
  // A link that has several may have ended by another one meanwhile.
  if (!isClosed_.load(std::memory_order_seq_cst)) return true;
  drop();
  return false;
}

// Two codes of a link's health are no failures (Link::health), and here this is one.
void TcpPipe::fail(Status why) {
  const bool isFailure = why.code() != Code::kPeerSilent && why.code() != Code::kTryAgain;
  why_ = isFailure ? std::move(why) : Status(Code::kUnavailable, std::string(why.message()));
  failed_.store(true, std::memory_order_release);
}

bool TcpPipe::writable() {
  return isUp() && member_->mayWrite.load(std::memory_order_relaxed);
}

// Of many slices the kernel does not say which one it could not read: the first one alone tells.
Result<size_t> TcpPipe::write(const PipeSlices& from) {
  if (!isUp()) return size_t{0};
  Result<size_t> sent = sendVec(socket_.get(), from.slices);
  if (sent.status().code() == Code::kRevoked && from.slices.size() > 1)
    sent = sendVec(socket_.get(), from.slices.first(1));
  if (sent || sent.status().code() == Code::kRevoked) return sent;
  if (sent.status().code() != Code::kTryAgain) return asLost(sent.status());
  member_->mayWrite.store(false, std::memory_order_relaxed);
  return size_t{0};
}

bool TcpPipe::readable() {
  if (failed_.load(std::memory_order_relaxed)) return true;
  return isUp() && (member_->mayRead.load(std::memory_order_relaxed) ||
                    mustLook_.load(std::memory_order_relaxed));
}

// A read that fills less than it could has taken everything: to try again would cost a call.
Result<size_t> TcpPipe::read(const PipeSlices& to) {
  if (failed_.load(std::memory_order_acquire)) return why_;
  if (!isUp()) return size_t{0};
  if (mustLook_.exchange(false, std::memory_order_relaxed)) PEERLANE_RETURN_IF_ERROR(look());
  Result<size_t> received = recvVec(socket_.get(), to.slices);
  if (received.status().code() == Code::kRevoked) return received;
  if (received && *received == 0) return Status(Code::kPeerLost, "the peer closed the data socket");
  const bool isEmpty = !received && received.status().code() == Code::kTryAgain;
  if (!received && !isEmpty) return asLost(received.status());
  const size_t bytes = isEmpty ? 0 : *received;
  size_t room = 0;
  for (const IoSlice& slice : to.slices) room += slice.bytes;
  if (bytes < room) member_->mayRead.store(false, std::memory_order_relaxed);
  return bytes;
}

Status TcpPipe::look() {
  Result<TcpFlow> flow = tcpFlow(socket_.get());
  if (!flow) return flow.status().code() == Code::kNotSupported ? Status::ok() : flow.status();
  const TcpLiveness::Verdict verdict = liveness_.judge(*flow, TcpLiveness::Clock::now());
  isStuck_.store(verdict == TcpLiveness::Verdict::kStuck, std::memory_order_release);
  if (verdict != TcpLiveness::Verdict::kDead) return Status::ok();
  return Status(Code::kPeerLost,
                "the peer's host has acknowledged nothing on the data connection "
                "for " +
                    formatDuration(patience_) + " (PEERLANE_PEER_TIMEOUT)");
}

void TcpPipe::refresh() {
  if (!isUp()) return;
  const bool isFull = !member_->mayWrite.load(std::memory_order_relaxed);
  if (isFull == wantsRoom_) return;
  wantsRoom_ = isFull;
  readiness_.wantRoom(*member_, isFull);
}

void TcpPipe::close() {
  isAwaited_.store(false, std::memory_order_release);
  isClosed_.store(true, std::memory_order_seq_cst);
  drop();
}

void TcpPipe::drop() {
  if (!up_.exchange(false, std::memory_order_seq_cst)) return;
  readiness_.remove(*member_);
  socket_.reset();
}

}  // namespace peerlane
