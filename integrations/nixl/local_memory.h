// SPDX-License-Identifier: Apache-2.0
//
// LocalMemory: memory that the agent registered: a region of the context that it belongs to and,
// for host memory that goes to or comes from GPUs of peers, a region of the contexts of GPUs, made
// when a transfer first needs it. Thread-safe. Owners: the agent's metadata and the requests that
// use it.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "integrations/nixl/agent_contexts.h"
#include "integrations/nixl/nixl_abi.h"
#include "peerlane/memory/region.h"

namespace peerlane::nixl {

class LocalMemory {
 public:
  // Registers it. Errors: those of Context::registerRegion and Context::create; kInvalidArgument
  // where the memory is not of the kind that `type` names.
  static Result<std::shared_ptr<LocalMemory>> create(AgentContexts& contexts,
                                                     const abi::DescribedPiece& piece,
                                                     abi::MemoryType type);

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  bool isOnHost() const { return device_.kind == DeviceKind::kHost; }
  Context* home() const { return home_; }
  // Of the home. Lifetime: this object's.
  const Region& region() const { return region_; }
  // kClosed once it ends.
  Result<const Region*> regionOf(Context& context);
  // For NIXL's metadata.
  std::string publicData() const;
  std::string description() const;
  // Refuses new transfers, and waits for running ones and for peers that have imported it, as
  // Context::unregister; but not for a silent peer (kPeerSilent).
  Status end(std::chrono::nanoseconds timeout);

 private:
  LocalMemory(const abi::DescribedPiece& piece, Device device, Context* home)
      : address_(piece.address), bytes_(piece.bytes), device_(device), home_(home) {}
  std::byte* data() const;
  Status endBy(std::chrono::steady_clock::time_point deadline);

  const uint64_t address_;
  const uint64_t bytes_;
  const Device device_;
  Context* const home_;
  Region region_;  // empty for 0 bytes
  std::mutex mutex_;
  bool isEnded_ = false;
  std::map<Context*, Region> others_;  // nodes stay where they are
};

}  // namespace peerlane::nixl
