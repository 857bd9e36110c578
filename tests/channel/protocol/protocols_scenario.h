// SPDX-License-Identifier: Apache-2.0
//
// Scenarios for the explorer: memory, bindings and users of the shipped protocols. A lane is added
// to a scenario; what comes back are the executions, which the test gives to actors.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "explore/explorer.h"
#include "peerlane/channel/protocol/protocols.h"

namespace peerlane {

// One execution per message, in order of their numbers.
struct LaneExecutions {
  std::vector<explorer::Execution> sender;
  std::vector<explorer::Execution> receiver;
};

// Programs outlive the scenario.
struct LanePair {
  const Program* sender = nullptr;
  const Program* receiver = nullptr;
};

// How many of everything. Message m uses buffer set m % senders at the one side and m % receivers
// at the other, so that each actor has its own.
struct Setting {
  uint32_t slots = 1;
  uint32_t messages = 3;
  uint32_t senders = 1;
  uint32_t receivers = 1;
  std::string name() const;
};

inline constexpr uint64_t kPayloadBytes = 64;

enum class MessageForm : uint8_t { kEager, kEagerEmpty, kGet, kPut };
struct MessagePrograms {
  LanePair programs;
  MessageForm kind = MessageForm::kEager;
};
MessageLane messageLane(uint32_t slots);

// One entry per message: protocols may be mixed on a lane.
LaneExecutions addMessageLane(explorer::Scenario& scenario, const Setting& setting, int senderSide,
                              const std::vector<MessagePrograms>& messages);

// Gives executions to `count` actors of one side in turn: i, i + count, ...
void addActors(explorer::Scenario& scenario, const std::string& name, int side, uint32_t count,
               const std::vector<explorer::Execution>& executions);

// A shipped protocol with all the scenarios it must pass, the cheap ones first.
struct ProtocolCase {
  std::string name;
  std::function<Program(uint32_t slots)> sender;
  std::function<Program(uint32_t slots)> receiver;
  std::function<explorer::Scenario(const LanePair&, const Setting&)> scenario;
  std::vector<Setting> settings;
};
std::vector<ProtocolCase> shippedProtocols();

// True when the long versions were asked for (EXPLORE_LONG=1, set by `make soak`).
bool explorationIsLong();

// True under the address sanitizer, where exploring takes thirty times as long: it watches the
// explorer's memory over the small scenarios. The verdicts on the large ones are the release
// build's.
bool explorationIsShort();

}  // namespace peerlane
