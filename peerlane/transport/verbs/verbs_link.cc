// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/verbs/verbs_link.h"

#include <chrono>
#include <thread>
#include <utility>

#include "peerlane/core/log.h"
#include "peerlane/core/text.h"
#include "peerlane/core/wire.h"

namespace peerlane {
namespace {

constexpr const char* kEngine = "nic";
// In a grant: words that follow go as mails.
constexpr uint8_t kMailsWords = 1;

}  // namespace

VerbsLink::VerbsLink(std::shared_ptr<VerbsNic> nic, std::unique_ptr<PairRounds> rounds,
                     std::unique_ptr<VerbsAgent> agent, std::string path, bool peerMails,
                     const VerbsRail& rail)
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
              .registrations = nic_->keys().paths().texts(),
              .takes = [nic = nic_.get()](
                           const RegionRecord& region) { return nic->keys().takes(region); }},
      peerMails_(peerMails) {
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
  if (key.needsFlush && !peerMails_)
    return Status(Code::kNotSupported,
                  "the peer is of a version that does not let this side flush what it wrote into " +
                      region.memory.device.toString());
  PEERLANE_CHECK(key.address <= UINT32_MAX);  // RegistrationPaths::addressOf(), of what peers get
  LinkPart part;
  ByteWriter writer(part.blob);
  writer.u32(key.remote);
  writer.u32(static_cast<uint32_t>(key.address));
  if (key.needsFlush) writer.u8(kMailsWords);
  return part;
}

Result<RemoteMemory> VerbsLink::attach(Grant grant) {
  ByteReader reader(grant.own.blob);
  const uint64_t key = reader.u32();
  const uint64_t address = reader.u32();
  const uint8_t flags = reader.ok() && reader.remaining() != 0 ? reader.u8() : 0;
  PEERLANE_RETURN_IF_ERROR(reader.finish("a grant over verbs", Trailing::kAllow));
  const bool mailsWords = (flags & kMailsWords) != 0;
  if ((flags & ~kMailsWords) != 0)
    return Status(Code::kNotSupported,
                  "a grant over verbs asks for what this version does not do (" +
                      std::to_string(flags) + ")");
  if (mailsWords) agent_->mailWords();
  return RemoteMemory{.grant = std::move(grant.region),
                      .engine = kEngine,
                      .linkKey = key << 32 | address,
                      .refusesInOrder = true,
                      .needsItsWords = mailsWords,
                      .enforcer = Enforcer::kOwner};
}

void VerbsLink::detach(RemoteMemory& memory) {
  memory = {};
}

// A peer that leaves has answered what reached it, and its last words may come by another wire
// sooner than those answers.
void VerbsLink::close(Code code) {
  answerLimit_.cancel();
  if (rounds_) rounds_->stop();
  // News that came counts, though nobody will read it: receives that it took up are others' again.
  (void)nic_->queues().poll();
  constexpr std::chrono::milliseconds kAnswers{2};
  const auto until = std::chrono::steady_clock::now() + kAnswers;
  while (code == Code::kPeerLost && agent_->isUnderWay() &&
         std::chrono::steady_clock::now() < until)
    if (!nic_->queues().poll()) std::this_thread::yield();
  agent_->close(code);
  // Words of the link that goes on may tell of bytes that came over this one.
  if (const Status flushed = nic_->keys().writes().flush(); !flushed.isOk())
    PEERLANE_LOG_WARN("{}", flushed.message());
}

bool VerbsLink::poll() {
  bool moved = nic_->queues().poll();
  moved |= agent_->advance();
  if (firstAnswer_) moved |= firstAnswer_->advance();
  return moved;
}

void VerbsLink::awaitFirstAnswer(const LinkSurroundings& around,
                                 std::chrono::nanoseconds patience) {
  agent_->expectFirstAnswer();
  firstAnswer_.emplace(*agent_);
  answerLimit_ = around.loop.after(patience, [this, patience, wake = around.workArrived] {
    (void)nic_->queues().poll();  // it may have come while nobody took a turn
    if (!firstAnswer_->isAwaited()) return;
    agent_->fail(Status(Code::kPeerLost, "the peer's device answered no request within " +
                                             formatDuration(patience) +
                                             " (three quarters of PEERLANE_CONNECT_TIMEOUT): look "
                                             "at the network between, and at firewalls "
                                             "(RoCE v2 is UDP to port 4791)"));
    if (wake) wake();
  });
}

Status VerbsLink::health() const {
  Status health = agent_->health();
  if (!health.isOk() || !firstAnswer_) return health;
  if (firstAnswer_->isAwaited())
    return Status(Code::kTryAgain, "the peer's device has answered no request yet");
  if (firstAnswer_->code() == Code::kOk) return health;
  return Status(Code::kPeerLost, "the peer's device refused the first request");
}

}  // namespace peerlane
