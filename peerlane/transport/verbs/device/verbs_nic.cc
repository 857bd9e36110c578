// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/device/verbs_nic.h"

#include <utility>

namespace peerlane {

Result<std::shared_ptr<VerbsNic>> VerbsNic::create(std::shared_ptr<const verbs::VerbsDevice> device,
                                                   const LinkSurroundings& surroundings,
                                                   const cuda::Gpus& gpus) {
  PEERLANE_ASSIGN(auto domain, ProtectionDomain::create(std::move(device)));
  PEERLANE_ASSIGN(auto queues, SharedQueues::create(domain, surroundings.loop,
                                                    surroundings.readiness, surroundings.bell));
  return std::shared_ptr<VerbsNic>(
      new VerbsNic(std::move(domain), std::move(queues), surroundings, gpus));
}

}  // namespace peerlane
