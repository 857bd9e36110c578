// SPDX-License-Identifier: Apache-2.0
//
// LoopRead: a NIC reads memory of its own host, through a queue pair that is joined to itself. A
// read of a device's memory comes after all that the NIC wrote there before, because the bus keeps
// that order; so it is a flush for GPUs that know no other one. NCCL flushes such GPUs in this way.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "peerlane/core/config.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/transport/verbs/device/protection_domain.h"
#include "peerlane/transport/verbs/device/queue_pair.h"

namespace peerlane {

class LoopRead {
 public:
  // Joins the pair. Of the settings it takes those of QueuePair::connect(). Errors: kUnavailable,
  // kOutOfMemory, kSystem, naming the device.
  static Result<std::unique_ptr<LoopRead>> create(std::shared_ptr<const ProtectionDomain> domain,
                                                  const Config& config);
  ~LoopRead();
  LoopRead(const LoopRead&) = delete;
  LoopRead& operator=(const LoopRead&) = delete;

  // Returns when the NIC has read a byte of memory that is registered with this local key:
  // microseconds, and no system call but the driver's. The registration lives meanwhile. Errors:
  // kSystem naming the device's status; a later call joins the pair anew.
  Status read(uint32_t key, uint64_t address);

 private:
  LoopRead(std::shared_ptr<const ProtectionDomain> domain, const Config& config)
      : domain_(std::move(domain)), config_(config) {}
  Status join() PEERLANE_REQUIRES(mutex_);
  Status readOnce(uint32_t key, uint64_t address) PEERLANE_REQUIRES(mutex_);

  const std::shared_ptr<const ProtectionDomain> domain_;
  const Config config_;
  Mutex mutex_;
  alignas(8) std::byte landing_[8]{};  // what was read goes there, and nobody looks at it
  DeviceMemory landed_ PEERLANE_GUARDED_BY(mutex_);
  ibv_cq* completions_ PEERLANE_GUARDED_BY(mutex_) = nullptr;
  std::unique_ptr<QueuePair> pair_ PEERLANE_GUARDED_BY(mutex_);  // null: it failed
};

}  // namespace peerlane
