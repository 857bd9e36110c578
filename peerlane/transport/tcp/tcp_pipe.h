// SPDX-License-Identifier: Apache-2.0
//
// TcpPipe: the byte pipe of a tcp link: empty at first, then a connected socket. Not a handshake.
// The thread that polls reads the socket (readiness_set.h): no message waits for another thread.
// Threads as for FramePipe; construction, adopt() and fail() belong to the loop's thread, which may
// run while another thread polls.
#pragma once

#include <atomic>
#include <memory>

#include "peerlane/os/fd.h"
#include "peerlane/os/readiness_set.h"
#include "peerlane/transport/frame_pipe.h"
#include "peerlane/transport/tcp/tcp_liveness.h"

namespace peerlane {

class TcpPipe final : public FramePipe {
 public:
  // `readiness` outlives the pipe. `patience`: with a host that answers nothing. `isOften`: as in
  // ReadinessSet::add.
  TcpPipe(ReadinessSet& readiness, std::chrono::nanoseconds patience, bool isOften)
      : readiness_(readiness), patience_(patience), isOften_(isOften), liveness_(patience) {}
  ~TcpPipe() override { close(); }
  TcpPipe(const TcpPipe&) = delete;
  TcpPipe& operator=(const TcpPipe&) = delete;

  // Takes over a connected socket. Requires: neither adopt() nor fail() was called. False: it did
  // not, and closed it, because the pipe is closed, or for a reason that the next read reports.
  bool adopt(Fd socket);
  // There will be no socket: every later read returns `why`.
  void fail(Status why);
  // There is no socket yet, or its failure was not read yet. Any thread.
  bool isAwaited() const { return isAwaited_.load(std::memory_order_acquire); }
  // The next poll looks whether the other host still takes what is sent to it. Any thread.
  void lookSoon() { mustLook_.store(true, std::memory_order_release); }
  // At the last look it had answered, and taken nothing, for the whole patience. Any thread.
  bool isStuck() const { return isStuck_.load(std::memory_order_acquire); }

  bool writable() override;
  Result<size_t> write(const PipeSlices& from) override;
  bool readable() override;
  Result<size_t> read(const PipeSlices& to) override;
  void refresh() override;
  bool mayOwe() const override { return readiness_.isAttended(); }
  void setOwing(bool owes) override { owes ? readiness_.owe() : readiness_.paid(); }
  void close() override;

 private:
  void drop();
  bool isUp() const { return up_.load(std::memory_order_acquire); }
  Status look();

  ReadinessSet& readiness_;
  const std::chrono::nanoseconds patience_;
  const bool isOften_;
  TcpLiveness liveness_;  // by the thread that polls
  // Written before `up_` or `failed_`.
  Fd socket_;
  std::shared_ptr<ReadinessSet::Member> member_;
  Status why_;
  std::atomic<bool> up_{false};        // release by adopt(); acquire by users of `socket_`
  std::atomic<bool> isClosed_{false};  // partner: up_, sequentially consistent
  std::atomic<bool> isAwaited_{true};
  std::atomic<bool> mustLook_{false};
  std::atomic<bool> isStuck_{false};
  std::atomic<bool> failed_{false};  // release by fail(); acquire by readers of `why_`
  bool wantsRoom_ = false;           // refresh() only
};

}  // namespace peerlane
