// SPDX-License-Identifier: Apache-2.0
//
// VerbsNic: a NIC as one context uses it: its domain of keys, the queues and memory that all links
// over it share. Shared by the transport and its links. Progress thread, but for what its parts
// allow.
#pragma once

#include <memory>

#include "peerlane/core/status.h"
#include "peerlane/transport/transport.h"
#include "peerlane/transport/verbs/device/bounce_slots.h"
#include "peerlane/transport/verbs/device/control_block.h"
#include "peerlane/transport/verbs/device/memory_keys.h"
#include "peerlane/transport/verbs/device/protection_domain.h"
#include "peerlane/transport/verbs/device/shared_queues.h"

namespace peerlane {

class VerbsNic {
 public:
  static Result<std::shared_ptr<VerbsNic>> create(std::shared_ptr<const verbs::VerbsDevice> device,
                                                  const LinkSurroundings& surroundings,
                                                  const cuda::Gpus& gpus = {});
  // Regions may outlive it.
  ~VerbsNic() { keys_->end(); }
  VerbsNic(const VerbsNic&) = delete;
  VerbsNic& operator=(const VerbsNic&) = delete;

  const verbs::VerbsDevice& device() const { return domain_->device(); }
  const std::shared_ptr<const ProtectionDomain>& domain() const { return domain_; }
  SharedQueues& queues() { return *queues_; }
  MemoryKeys& keys() { return *keys_; }
  BounceSlots& bounces() { return bounces_; }
  ControlBlocks& controls() { return *controls_; }

 private:
  VerbsNic(std::shared_ptr<const ProtectionDomain> domain, std::unique_ptr<SharedQueues> queues,
           const LinkSurroundings& surroundings, const cuda::Gpus& gpus)
      : domain_(std::move(domain)),
        queues_(std::move(queues)),
        keys_(
            std::make_shared<MemoryKeys>(domain_, surroundings.regions, surroundings.config, gpus)),
        controls_(std::make_shared<ControlBlocks>(domain_)),
        bounces_(domain_) {}

  const std::shared_ptr<const ProtectionDomain> domain_;
  const std::unique_ptr<SharedQueues> queues_;
  const std::shared_ptr<MemoryKeys> keys_;
  const std::shared_ptr<ControlBlocks> controls_;
  BounceSlots bounces_;
};

}  // namespace peerlane
