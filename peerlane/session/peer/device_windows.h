// SPDX-License-Identifier: Apache-2.0
//
// DeviceWindows: where streams of this context's devices find the two slabs of a peer. A slab is
// host memory that the link has mapped; a GPU reaches it once it is pinned. Pinned memory can be
// let go only when no stream waits, which may be after the link is gone; so a window is a mapping
// of its own. Owned by PeerCore; thread-safe.
#pragma once

#include <cstddef>
#include <memory>

#include "peerlane/core/mutex.h"
#include "peerlane/memory/device_pin.h"
#include "peerlane/os/shm_segment.h"
#include "peerlane/session/peer/slab_pair.h"

namespace peerlane {

class DeviceWindows {
 public:
  DeviceWindows(const PeerEnvironment& env, const LinkSet& links, const SlabPair& slabs)
      : env_(env), links_(links), slabs_(slabs) {}

  // The slab that this side keeps, and the peer's. Made when first asked for. Requires: the peer
  // was ready once. Errors: kInvalidArgument (no devices), kNotSupported (the slabs are not mapped,
  // as over tcp), those of pinning.
  Result<std::byte*> own();
  Result<std::byte*> peers();
  // The words go when no executor looks at them any more. Requires: no other thread is in a call.
  // Not analysed: that requirement stands for the lock.
  void close() PEERLANE_NO_THREAD_SAFETY_ANALYSIS;

 private:
  // Its end unpins it.
  struct Window {
    Window() = default;
    Window(Window&&) = default;
    ~Window();
    std::shared_ptr<SharedSegment> segment;
    std::unique_ptr<DevicePin> pin;
  };
  Result<std::byte*> open(Window& window, SlabPair::Backing backing) PEERLANE_REQUIRES(mutex_);
  void close(Window& window);

  const PeerEnvironment& env_;
  const LinkSet& links_;
  const SlabPair& slabs_;
  Mutex mutex_;  // held while a window is mapped and pinned
  Window own_ PEERLANE_GUARDED_BY(mutex_);
  Window peers_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
