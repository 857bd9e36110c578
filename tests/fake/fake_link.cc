// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/fake_link.h"

#include <bit>
#include <utility>

#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

// A key of one region: taken back when the region ends.
class FakeExport final : public RegionExport {
 public:
  FakeExport(std::shared_ptr<FakeKeys> keys, const RegionRecord& region)
      : key(keys->add(region.allocation, region.generation)), keys_(std::move(keys)) {}
  ~FakeExport() override { keys_->remove(key); }
  Status revoke(std::chrono::nanoseconds /*timeout*/) override {
    keys_->remove(key);
    return Status::ok();
  }
  const uint64_t key;

 private:
  const std::shared_ptr<FakeKeys> keys_;
};

}  // namespace

uint64_t FakeKeys::add(uint64_t allocation, uint64_t generation) {
  const MutexLock lock(mutex_);
  keys_[++last_] = {allocation, generation};
  return last_;
}

void FakeKeys::remove(uint64_t key) {
  const MutexLock lock(mutex_);
  keys_.erase(key);
}

bool FakeKeys::isOf(uint64_t key, uint64_t allocation, uint64_t generation) const {
  const MutexLock lock(mutex_);
  const auto found = keys_.find(key);
  return found != keys_.end() && found->second == std::pair(allocation, generation);
}

size_t FakeKeys::alive() const {
  const MutexLock lock(mutex_);
  return keys_.size();
}

uint64_t FakeKeys::made() const {
  const MutexLock lock(mutex_);
  return last_;
}

LinkAbilities FakeLink::abilities(const FakeLinkOptions& options) {
  LinkAbilities abilities;
  AbilitySet all{Ability::kGrants, Ability::kAttaches};
  if (options.mapped)
    all.add({Ability::kMaps});
  else
    all.add({Ability::kByAgent, Ability::kFromHere});
  const Enforcer enforcer = options.mapped ? Enforcer::kInitiator : Enforcer::kOwner;
  for (const MemoryKind& kind : options.kinds)
    abilities.allow(kind.place, {kind.exported}, all, enforcer);
  if (options.carriesWords)
    abilities.allow(MemoryPlace::kHost, {MemoryExport::kDescriptor},
                    {options.mapped ? Ability::kMapsWords : Ability::kSendsWords}, enforcer);
  if (options.refusedKind)
    abilities.refuse(options.refusedKind->place, options.refusedKind->exported,
                     {Ability::kAttaches}, options.whyRefused);
  return abilities;
}

FakeLink::FakeLink(std::string name, std::unique_ptr<FramePipe> pipe, RegionDirectory& regions,
                   std::function<void()> workArrived, FakeLinkOptions options,
                   std::shared_ptr<FakeKeys> keys)
    : options_(std::move(options)),
      keys_(std::move(keys)),
      agent_(std::move(name), std::move(pipe), regions, std::move(workArrived)) {
  traits_.transport = options_.name;
  traits_.scope = options_.scope;
  traits_.abilities = abilities(options_);
  traits_.peerWritesAlone = options_.mapped;
  traits_.agentEngine = options_.mapped ? "" : "fake";
}

Result<LinkPart> FakeLink::grant(const RegionRecord& region) {
  if (!options_.refuseGrant.isOk()) return options_.refuseGrant;
  LinkPart part;
  ByteWriter writer(part.blob);
  if (options_.mapped) {
    writer.u64(std::bit_cast<uint64_t>(region.base));
    return part;
  }
  PEERLANE_ASSIGN(const auto made, region.exports.of(keys_.get(), [&] {
    return Result<std::shared_ptr<RegionExport>>(std::make_shared<FakeExport>(keys_, region));
  }));
  writer.u64(static_cast<const FakeExport&>(*made).key);
  return part;
}

Result<RemoteMemory> FakeLink::attach(Grant grant) {
  if (!options_.refuseAttach.isOk()) return options_.refuseAttach;
  ByteReader reader(grant.own.blob);
  const uint64_t own = reader.u64();
  PEERLANE_RETURN_IF_ERROR(reader.finish("the fake's part of a grant"));
  RemoteMemory memory;
  if (options_.mapped) {
    memory.mapped = std::bit_cast<std::byte*>(own);
  } else {
    if (!keys_->isOf(own, grant.region.allocation, grant.region.generation))
      return Status(Code::kCorrupt, "key " + std::to_string(own) + " is not one of region " +
                                        std::to_string(grant.region.allocation));
    memory.linkKey = own;
    memory.refusesInOrder = true;
    memory.enforcer = Enforcer::kOwner;
  }
  ++attached_;
  memory.grant = std::move(grant.region);
  memory.engine = options_.mapped ? "mapped" : "fake";
  return memory;
}

void FakeLink::detach(RemoteMemory& memory) {
  --attached_;
  memory = {};
}

}  // namespace peerlane
