// SPDX-License-Identifier: Apache-2.0
//
// RemoteBell: the bell of another context as its peer holds it: that context's page, mapped for
// reading, and a descriptor that wakes it. It owns both, so a producer that rings after the other
// context has ended wakes nobody and touches no freed memory. Thread-safe once made; movable.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "peerlane/os/fd.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/program/model/bell.h"

namespace peerlane {

class RemoteBell {
 public:
  RemoteBell() = default;
  // `descriptor`: an eventfd of this process, or this side's end of the connection's pair of
  // sockets; forked children do not get it. Errors: what SharedSegment::import says of the page.
  static Result<RemoteBell> import(Fd page, Fd descriptor, bool isSocket) {
    RemoteBell bell;
    PEERLANE_ASSIGN(bell.page_, SharedSegment::import(std::move(page), Bell::kPageBytes, 0,
                                                      /*writable=*/false));
    bell.descriptor_ = std::move(descriptor);
    bell.isSocket_ = isSocket;
    const NoFork none;
    keepFromChildren(bell.descriptor_.get());
    return bell;
  }

  // The Waker is valid as long as this RemoteBell exists, or the one that it was moved to.
  Waker waker() const {
    return {Bell::wordIn(page_->data()), rungAt_.get(), descriptor_.get(), isSocket_};
  }

  // The same for stores of signals.
  Waker signalWaker() const {
    Waker waker = this->waker();
    waker.listeners = Bell::listenersIn(page_->data());
    return waker;
  }

  int descriptor() const { return descriptor_.get(); }

 private:
  std::unique_ptr<SharedSegment> page_;
  Fd descriptor_;
  bool isSocket_ = false;
  std::unique_ptr<std::atomic<uint64_t>> rungAt_ =  // of all wakers of this bell
      std::make_unique<std::atomic<uint64_t>>(bell_word::kNever);
};

}  // namespace peerlane
