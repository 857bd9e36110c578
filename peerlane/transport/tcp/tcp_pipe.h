// SPDX-License-Identifier: Apache-2.0
//
// TcpPipe: the byte pipe of a tcp link: empty at first, then a connected socket. Not a handshake.
// Threads as for FramePipe; construction, adopt() and fail() belong to the loop's thread, which may
// run while another thread polls. Only that thread touches the watch and closes the socket, so both
// live in a state of their own that can outlast the pipe by a turn of the loop.
#pragma once

#include <atomic>
#include <memory>

#include "peerlane/os/event_loop.h"
#include "peerlane/os/fd.h"
#include "peerlane/transport/frame_pipe.h"

namespace peerlane {

class TcpPipe final : public FramePipe {
 public:
  // `loop` outlives the pipe.
  explicit TcpPipe(EventLoop& loop) : loop_(loop), state_(std::make_shared<State>()) {}
  ~TcpPipe() override { close(); }
  TcpPipe(const TcpPipe&) = delete;
  TcpPipe& operator=(const TcpPipe&) = delete;

  // Takes over a connected socket. Requires: neither adopt() nor fail() was called. The next read
  // reports errors.
  void adopt(Fd socket);
  // There will be no socket: every later read returns `why`.
  void fail(Status why);

  bool writable() override;
  Result<size_t> write(std::span<const IoSlice> slices) override;
  bool readable() override;
  Result<size_t> read(std::span<const IoSlice> slices) override;
  void refresh() override;
  void close() override;

 private:
  // After data came, this many empty reads are tried before the pipe relies on the event loop: an
  // answer often follows at once, and a spinning loop looks at descriptors only now and then.
  static constexpr int kEagerReads = 32;

  struct State {
    void onReady();

    // The loop's thread. `socket` and `why` are written before `up` or `failed`.
    Fd socket;
    Status why;
    bool armed = false;  // the watch waits for room, too
    Watch watch;

    std::atomic<bool> up{false};      // release by adopt(); acquire by users of `socket`
    std::atomic<bool> failed{false};  // release by fail(); acquire by readers of `why`
    // A call that found the socket unready, or asked the loop, sets them; onReady() clears them.
    // Hints: a wrong one costs a call or a turn, because the watch reports until the socket is
    // unready.
    std::atomic<bool> full{false};
    std::atomic<bool> asked{false};  // for room
    std::atomic<bool> ready{false};  // the other way round: set by onReady(), cleared by read()
  };

  EventLoop& loop_;
  std::shared_ptr<State> state_;
  int eagerReads_ = 0;
};

}  // namespace peerlane
