// SPDX-License-Identifier: Apache-2.0
//
// VerbsLink: an agent link over a NIC: the peer's device reads and writes granted memory without a
// processor of its host. Threads as for Link.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "peerlane/os/event_loop.h"
#include "peerlane/transport/link.h"
#include "peerlane/transport/transport.h"
#include "peerlane/transport/verbs/device/verbs_nic.h"
#include "peerlane/transport/verbs/first_answer.h"
#include "peerlane/transport/verbs/pair_rounds.h"
#include "peerlane/transport/verbs/verbs_agent.h"

namespace peerlane {

// Which of the links to one peer it is: the name of its transport, and its place among the rails.
struct VerbsRail {
  std::string name = "verbs";
  std::shared_ptr<const LinkRails> all{};  // null: there is one
  uint32_t number = 0;
};

class VerbsLink final : public Link {
 public:
  // `path`: the devices and addresses of both sides, for people. `rounds`: as the agent's
  // surroundings have it; null: its first pair is its only one. `peerMails`: the peer sends words
  // as mails where a grant asks for that.
  VerbsLink(std::shared_ptr<VerbsNic> nic, std::unique_ptr<PairRounds> rounds,
            std::unique_ptr<VerbsAgent> agent, std::string path, bool peerMails,
            const VerbsRail& rail = {});
  ~VerbsLink() override { close(Code::kClosed); }

  // With host memory, and with GPUs' where the NIC reaches that; null: all that any NIC can.
  static LinkAbilities abilities(const RegistrationPaths* paths);
  // From now on health() is kTryAgain until the peer's NIC has answered a request, which the first
  // poll() posts. Where none comes within `patience` the link fails. Progress thread, before that
  // poll(); `around` as for the agent.
  void awaitFirstAnswer(const LinkSurroundings& around, std::chrono::nanoseconds patience);

  const LinkTraits& traits() const override { return traits_; }
  Result<LinkPart> grant(const RegionRecord& region) override;
  Result<RemoteMemory> attach(Grant grant) override;
  void detach(RemoteMemory& memory) override;
  bool poll() override;
  Served serve(AgentWork& work) override { return agent_->serve(work); }
  void abandon(AgentWork& work, Code code) override { agent_->abandon(work, code); }
  void handedOut(AgentWork& first, AgentWork& last) override { agent_->handedOut(first, last); }
  Status health() const override;
  void close(Code code) override;

 private:
  const std::shared_ptr<VerbsNic> nic_;
  const std::unique_ptr<PairRounds> rounds_;
  std::optional<FirstAnswer> firstAnswer_;
  const std::unique_ptr<VerbsAgent> agent_;
  Timer answerLimit_;
  const LinkTraits traits_;
  const bool peerMails_;
};

}  // namespace peerlane
