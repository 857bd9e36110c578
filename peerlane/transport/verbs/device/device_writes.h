// SPDX-License-Identifier: Apache-2.0
//
// DeviceWrites: what has to happen between bytes that a NIC writes into memory of a GPU and the
// moment when somebody is told of them: nothing where the GPU orders such writes; else a flush, by
// the thread of the host that tells: a call of the driver, or where the GPU knows none, a read by
// the NIC (LoopRead). It is the GPU of the memory that sees the bytes then, no other one.
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "peerlane/core/config.h"
#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/memory/device.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/verbs/nic_writes.h"
#include "peerlane/transport/verbs/device/loop_read.h"

namespace peerlane {

class DeviceWrites {
 public:
  // The GPUs of the context, and the NIC that writes.
  DeviceWrites(const cuda::Gpus& gpus, const std::shared_ptr<const ProtectionDomain>& domain,
               const Config& config);
  DeviceWrites(const DeviceWrites&) = delete;
  DeviceWrites& operator=(const DeviceWrites&) = delete;

  // A NIC may write into memory of the device. For one that is no GPU of the context its provider
  // answers. Errors: kNotSupported with the reason.
  Status allowed(Device device) const;
  // The reason if there are GPUs, and none of them is allowed().
  Status allowedForAny() const;
  // A flush has to come between the bytes and whatever tells of them.
  bool needsFlush(Device device) const;
  // Memory of the device was given to the NIC: flush() is about it as well, if it needs that.
  // `key`, `address`: of its registration, which lives until letGo() has returned.
  void use(Device device, uint32_t key, uint64_t address);
  void letGo(Device device, uint32_t key);
  // flush() has something to do.
  bool areFlushed() const { return areFlushed_.load(std::memory_order_acquire); }
  // Makes all earlier writes of the NIC visible to the GPUs in use, each in its memory. Errors:
  // kSystem.
  Status flush() const;
  // For people: a text for each GPU.
  std::vector<std::string> texts() const;

 private:
  struct Registered {
    uint32_t key;
    uint64_t address;
  };
  struct Gpu {
    std::shared_ptr<const cuda::PrimaryContext> context;
    Result<cuda::NicWrites> way;
    std::atomic<bool> isUsed{false};
    // Held while the NIC reads, so that no registration ends meanwhile.
    mutable Mutex mutex;
    std::vector<Registered> registered PEERLANE_GUARDED_BY(mutex);
  };
  Gpu* find(Device device) const;
  Status readBack(const Gpu& gpu) const;

  std::vector<std::unique_ptr<Gpu>> gpus_;
  // Made where a GPU needs it; else, and where it could not be made, an error.
  Result<std::unique_ptr<LoopRead>> loop_;
  std::atomic<bool> areFlushed_{false};
};

}  // namespace peerlane
