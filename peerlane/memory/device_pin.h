// SPDX-License-Identifier: Apache-2.0
//
// DevicePin: keeps a piece of host memory reachable for devices for as long as this object lives.
// Unpinning may have to wait for a device, so it may happen later on another thread: the memory
// must stay where it is until `release` has called back. Thread-safe: no; it has one owner.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"

namespace peerlane {

class DevicePin {
 public:
  virtual ~DevicePin() = default;
  // Ends `pin` and calls `done` once the memory may go: at once, or later on a thread of the
  // library. A pin that is merely destroyed ends in the same way, without a callback.
  static void release(std::unique_ptr<DevicePin> pin, std::function<void()> done) {
    pin->whenEnded(std::move(done));
  }

 private:
  // Called once, right before the end of the object.
  virtual void whenEnded(std::function<void()> done) = 0;
};

// The pin of one piece of memory, made when it is first needed. Thread-safe.
class PinSlot {
 public:
  // `make` returns a Result<std::unique_ptr<DevicePin>>; called at most once with success. kClosed
  // after release().
  template <typename Make>
  Status ensure(const Make& make) {
    const MutexLock lock(mutex_);
    if (pin_) return Status::ok();
    if (released_) return Status(Code::kClosed, "the memory is being given back");
    auto made = make();
    if (made.isOk()) pin_ = std::move(*made);
    return made.status();
  }
  // Ends the slot: it makes no pin any more. Requires: no device uses the memory. `done` as in
  // DevicePin::release; called at once where nothing was pinned.
  void release(std::function<void()> done) {
    std::unique_ptr<DevicePin> pin;
    {
      const MutexLock lock(mutex_);
      released_ = true;
      pin = std::move(pin_);
    }
    if (pin)
      DevicePin::release(std::move(pin), std::move(done));
    else
      done();
  }

 private:
  Mutex mutex_;
  std::unique_ptr<DevicePin> pin_ PEERLANE_GUARDED_BY(mutex_);
  bool released_ PEERLANE_GUARDED_BY(mutex_) = false;
};

}  // namespace peerlane
