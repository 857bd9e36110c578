// SPDX-License-Identifier: Apache-2.0
//
// Every interleaving of every shipped protocol: right, right while waiters sleep, and released by
// poison at any moment.
#include <gtest/gtest.h>

#include "peerlane/channel/protocol/eager_protocol.h"
#include "peerlane/channel/protocol/rendezvous_protocol.h"
#include "tests/channel/protocol/protocols_scenario.h"

namespace peerlane {
namespace {

using explorer::ExplorerReport;
using explorer::Poisoning;
using explorer::Scenario;

class ProtocolExplored : public testing::TestWithParam<ProtocolCase> {
 protected:
  void exploreAll(const std::function<bool(const Setting&)>& isWanted,
                  const std::function<void(Scenario&)>& change) {
    const ProtocolCase& protocol = GetParam();
    uint64_t states = 0;
    for (const Setting& setting : protocol.settings) {
      if (!isWanted(setting)) continue;
      const Program sender = protocol.sender(setting.slots);
      const Program receiver = protocol.receiver(setting.slots);
      ASSERT_TRUE(sender.check()) << sender.check().toString();
      ASSERT_TRUE(receiver.check()) << receiver.check().toString();
      Scenario scenario = protocol.scenario({&sender, &receiver}, setting);
      change(scenario);
      const ExplorerReport report = explorer::explore(scenario);
      EXPECT_TRUE(report.ok()) << protocol.name << ", " << setting.name() << ": "
                               << report.toString();
      states += report.states;
    }
    RecordProperty("states", static_cast<int>(states));
  }
};

bool isSerial(const Setting& setting) {
  return setting.senders == 1 && setting.receivers == 1;
}

// What is left to `make soak` otherwise: some million states each.
bool isSmall(const Setting& setting) {
  return isSerial(setting) || (explorationIsLong() && setting.messages <= 3);
}

TEST_P(ProtocolExplored, IsRight) {
  exploreAll([](const Setting&) { return true; }, [](Scenario&) {});
}

TEST_P(ProtocolExplored, IsRightWhileWaitersSleep) {
  exploreAll(isSmall, [](Scenario& scenario) {
    scenario.sleeping.emplace();
    scenario.maxStates = 40'000'000;
  });
}

TEST_P(ProtocolExplored, IsReleasedByPoison) {
  exploreAll([](const Setting& setting) { return setting.messages <= 3; },
             [](Scenario& scenario) {
               scenario.poisoning = Poisoning::kUntilDrained;
               scenario.maxStates = 40'000'000;
             });
}

// The steps that the explorer merges are invisible indeed: without that, the same verdict.
TEST_P(ProtocolExplored, IsRightWithoutReduction) {
  exploreAll(isSmall, [](Scenario& scenario) {
    scenario.reduce = false;
    scenario.maxStates = 40'000'000;
  });
}

INSTANTIATE_TEST_SUITE_P(Shipped, ProtocolExplored, testing::ValuesIn(shippedProtocols()),
                         [](const auto& test) { return test.param.name; });

// The sender chooses the protocol of each message; one lane carries them all.
TEST(ProtocolsMixed, FollowEachOtherOnOneLane) {
  for (const uint32_t slots : {1u, 2u}) {
    const MessageLane lane = messageLane(slots);
    const Program programs[] = {
        eagerSender({.lane = lane, .payloadBytes = kPayloadBytes}),
        eagerReceiver({.lane = lane, .payloadBytes = kPayloadBytes}),
        eagerSender({.lane = lane}),
        rendezvousGetReceiver({lane, kPayloadBytes}),
        rendezvousPutSender({lane, kPayloadBytes}),
        rendezvousPutReceiver({lane, kPayloadBytes}),
    };
    const MessagePrograms eager{{&programs[0], &programs[1]}, MessageForm::kEager};
    const MessagePrograms get{{&programs[2], &programs[3]}, MessageForm::kGet};
    const MessagePrograms put{{&programs[4], &programs[5]}, MessageForm::kPut};
    for (const auto& messages : {std::vector{put, eager, get}, std::vector{eager, put, eager, put},
                                 std::vector{get, get, put, put}}) {
      const Setting setting{slots, static_cast<uint32_t>(messages.size()), 2, 2};
      Scenario scenario;
      const LaneExecutions executions = addMessageLane(scenario, setting, 0, messages);
      addActors(scenario, "sender", 0, 2, executions.sender);
      addActors(scenario, "receiver", 1, 2, executions.receiver);
      const ExplorerReport report = explorer::explore(scenario);
      EXPECT_TRUE(report.ok()) << setting.name() << ": " << report.toString();
    }
  }
}

// Two lanes, one each way: side 0 sends and then receives, side 1 receives and then sends.
TEST(ProtocolsMixed, GoBothWays) {
  for (const ProtocolCase& protocol : shippedProtocols()) {
    const bool isGet = protocol.name == "RendezvousGet";
    if (!isGet && protocol.name != "RendezvousPut" && protocol.name != "Eager") continue;
    const MessageForm kind = isGet                              ? MessageForm::kGet
                             : protocol.name == "RendezvousPut" ? MessageForm::kPut
                                                                : MessageForm::kEager;
    const Setting setting{.slots = 2, .messages = 2};
    const Program sender = protocol.sender(setting.slots);
    const Program receiver = protocol.receiver(setting.slots);
    const std::vector<MessagePrograms> messages(setting.messages, {{&sender, &receiver}, kind});
    Scenario scenario;
    const LaneExecutions there = addMessageLane(scenario, setting, 0, messages);
    const LaneExecutions back = addMessageLane(scenario, setting, 1, messages);
    explorer::Actor near{"near", 0, {}};
    explorer::Actor far{"far", 1, {}};
    for (uint32_t i = 0; i < setting.messages; ++i) {
      near.executions.insert(near.executions.end(), {there.sender[i], back.receiver[i]});
      far.executions.insert(far.executions.end(), {there.receiver[i], back.sender[i]});
    }
    scenario.actors = {near, far};
    for (const bool sleeping : {false, true}) {
      if (sleeping) scenario.sleeping.emplace();
      const ExplorerReport report = explorer::explore(scenario);
      EXPECT_TRUE(report.ok()) << protocol.name << ": " << report.toString();
    }
  }
}

}  // namespace
}  // namespace peerlane
