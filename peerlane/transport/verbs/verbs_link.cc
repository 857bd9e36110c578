// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/verbs_link.h"

#include <chrono>
#include <thread>
#include <utility>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr const char* kEngine = "nic";

}  // namespace

VerbsLink::VerbsLink(std::shared_ptr<VerbsNic> nic, std::unique_ptr<PairRounds> rounds,
                     std::unique_ptr<VerbsAgent> agent, std::string path, const VerbsRail& rail)
    : nic_(std::move(nic)),
      rounds_(std::move(rounds)),
      agent_(std::move(agent)),
      traits_{.transport = rail.name,
              .scope = LinkScope::kNetwork,
              .abilities = abilities(&nic_->keys().paths()),
              .peerWritesAlone = true,
              .agentEngine = kEngine,
              .protection = "neither encrypted nor authenticated",
              .path = std::move(path),
              .rails = rail.all,
              .rail = rail.number,
              .registrations = nic_->keys().paths().texts()} {
  if (rounds_) rounds_->begin(*agent_);
}

// The owner's device enforces the rights.
LinkAbilities VerbsLink::abilities(const RegistrationPaths* paths) {
  LinkAbilities abilities;
  abilities.allow(MemoryPlace::kHost, {MemoryExport::kNone, MemoryExport::kDescriptor},
                  {Ability::kGrants, Ability::kAttaches, Ability::kByAgent, Ability::kFromHere,
                   Ability::kSendsWords},
                  Enforcer::kOwner);
  abilities.allow(MemoryPlace::kCuda, allExports(),
                  {Ability::kGrants, Ability::kAttaches, Ability::kByAgent, Ability::kFromHere},
                  Enforcer::kOwner);
  if (paths == nullptr || paths->forDevices().isOk()) return abilities;
  for (const MemoryExport each : allExports())
    abilities.refuse(MemoryPlace::kCuda, each,
                     {Ability::kGrants, Ability::kAttaches, Ability::kByAgent, Ability::kFromHere},
                     std::string(paths->forDevices().message()));
  return abilities;
}

Result<LinkPart> VerbsLink::grant(const RegionRecord& region) {
  PEERLANE_ASSIGN(const MemoryKeys::Key key, nic_->keys().of(region));
  LinkPart part;
  ByteWriter writer(part.blob);
  writer.u32(key.remote);
  writer.u32(static_cast<uint32_t>(key.address));
  return part;
}

Result<RemoteMemory> VerbsLink::attach(Grant grant) {
  ByteReader reader(grant.own.blob);
  const uint64_t key = reader.u32();
  const uint64_t address = reader.u32();
  PEERLANE_RETURN_IF_ERROR(reader.finish("a grant over verbs", Trailing::kAllow));
  return RemoteMemory{.grant = std::move(grant.region),
                      .engine = kEngine,
                      .linkKey = key << 32 | address,
                      .refusesInOrder = true,
                      .enforcer = Enforcer::kOwner};
}

void VerbsLink::detach(RemoteMemory& memory) {
  memory = {};
}

// A peer that leaves has answered what reached it, and its last words may come by another wire
// sooner than those answers.
void VerbsLink::close(Code code) {
  if (rounds_) rounds_->stop();
  // News that came counts, though nobody will read it: receives that it took up are others' again.
  (void)nic_->queues().poll();
  constexpr std::chrono::milliseconds kAnswers{2};
  const auto until = std::chrono::steady_clock::now() + kAnswers;
  while (code == Code::kPeerLost && agent_->isUnderWay() &&
         std::chrono::steady_clock::now() < until)
    if (!nic_->queues().poll()) std::this_thread::yield();
  agent_->close(code);
}

bool VerbsLink::poll() {
  const bool moved = nic_->queues().poll();
  return agent_->advance() || moved;
}

}  // namespace peerlane
