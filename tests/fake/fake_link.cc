// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/fake_link.h"

#include <utility>

namespace peerlane {

FakeLink::FakeLink(std::string name, std::unique_ptr<FramePipe> pipe, RegionDirectory& regions,
                   std::function<void()> workArrived, FakeLinkOptions options)
    : options_(std::move(options)),
      agent_(std::move(name), std::move(pipe), regions, std::move(workArrived)) {
  traits_.transport = "fake";
  traits_.peerWritesAlone = options_.mapped;
  traits_.agentEngine = options_.mapped ? "" : "fake";
  traits_.wordsBy = options_.mapped ? "mapped" : "agent";
  traits_.rightsEnforcedBy = options_.mapped ? "initiator" : "owner";
}

Result<Grant> FakeLink::grant(RegionGrant region, const Fd& /*backing*/) {
  if (!options_.refuseGrant.isOk()) return options_.refuseGrant;
  if (!options_.mapped) region.base = 0;
  return Grant{region, Fd()};
}

Result<RemoteMemory> FakeLink::attach(Grant grant) {
  if (!options_.refuseAttach.isOk()) return options_.refuseAttach;
  ++attached_;
  RemoteMemory memory;
  memory.grant = grant.region;
  memory.mapped = options_.mapped ? reinterpret_cast<std::byte*>(grant.region.base) : nullptr;
  memory.engine = options_.mapped ? "mapped" : "fake";
  return memory;
}

void FakeLink::detach(RemoteMemory& memory) {
  --attached_;
  memory = {};
}

}  // namespace peerlane
