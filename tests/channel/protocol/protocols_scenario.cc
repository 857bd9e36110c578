// SPDX-License-Identifier: Apache-2.0
#include "tests/channel/protocol/protocols_scenario.h"

#include <cstdlib>

#include "peerlane/channel/protocol/eager_protocol.h"
#include "peerlane/channel/protocol/notify_protocol.h"
#include "peerlane/channel/protocol/rendezvous_protocol.h"
#include "peerlane/channel/protocol/staged_protocol.h"

namespace peerlane {
namespace {

using explorer::Execution;
using explorer::Range;
using explorer::Scenario;

Range area(Scenario& scenario, const std::string& name, int side, uint64_t bytes) {
  scenario.areas.push_back({name, side, bytes});
  return {static_cast<uint32_t>(scenario.areas.size() - 1), 0, bytes};
}

std::vector<Range> areas(Scenario& scenario, const std::string& name, int side, uint64_t bytes,
                         uint32_t count) {
  std::vector<Range> ranges;
  for (uint32_t i = 0; i < count; ++i)
    ranges.push_back(area(scenario, name + std::to_string(i), side, bytes));
  return ranges;
}

Range part(const Range& whole, uint64_t offset, uint64_t bytes) {
  return {whole.area, whole.offset + offset, bytes};
}

// --- Staged ring ---

StagedShape stagedShape(uint32_t slots, uint32_t chunks) {
  // The last chunk is shorter than the others.
  return {.slots = slots, .chunkBytes = 32, .chunks = chunks, .lastChunkBytes = 24};
}

Scenario stagedScenario(const LanePair& lane, const Setting& setting, uint32_t chunks) {
  Scenario scenario;
  const StagedShape shape = stagedShape(setting.slots, chunks);
  const uint64_t bytes = uint64_t{shape.chunkBytes} * (chunks - 1) + shape.lastChunkBytes;
  const Range payload = area(scenario, "payload", 0, bytes);
  const Range buffer = area(scenario, "buffer", 1, bytes);
  const Range ring = area(scenario, "ring", 1, uint64_t{shape.chunkBytes} * shape.slots);
  const Range data = area(scenario, "data", 1, 8);
  const Range credit = area(scenario, "credit", 0, 8);
  LaneExecutions executions;
  for (uint32_t i = 0; i < setting.messages; ++i) {
    Execution send{.program = lane.sender, .cursors = {uint64_t{i} * chunks}};
    send.targets = {payload, ring, data, credit};
    send.fills = {{payload, i + 1}};
    executions.sender.push_back(send);
    Execution receive{.program = lane.receiver, .cursors = send.cursors};
    receive.targets = {buffer, ring, data, credit};
    receive.fills = {{buffer, 0}};
    receive.expects = {{buffer, i + 1}};
    executions.receiver.push_back(receive);
  }
  addActors(scenario, "sender", 0, 1, executions.sender);
  addActors(scenario, "receiver", 1, 1, executions.receiver);
  return scenario;
}

// --- Puts ---

// A put of kPayloadBytes in two segments, from target `first + 1` to target `first`.
PutPayload twoSegments(TargetId first) {
  PutPayload payload;
  payload.targets = {{.name = "place", .side = Side::kRemote}, {.name = "payload"}};
  const uint64_t half = kPayloadBytes / 2;
  const TargetId from = static_cast<TargetId>(first + 1);
  payload.layout.segments = {{first, from, 0, 0, half}, {first, from, half, half, half}};
  return payload;
}

constexpr uint32_t kMessageBytes = 24;

Scenario notifyScenario(const LanePair& lane, const Setting& setting, bool hasPayload) {
  Scenario scenario;
  const uint32_t stride = kNotifyMessageOffset + kMessageBytes;
  const auto headers = areas(scenario, "header", 0, kNotifyHeaderBytes, setting.senders);
  const auto texts = areas(scenario, "text", 0, kMessageBytes, setting.senders);
  const auto payloads = areas(scenario, "payload", 0, kPayloadBytes, setting.senders);
  // What a put writes belongs to the user: here, every message has a place of its own.
  const auto places = areas(scenario, "place", 1, kPayloadBytes, setting.messages);
  const auto taken =
      areas(scenario, "taken", 1, kNotifyHeaderBytes + kMessageBytes, setting.receivers);
  const Range inbox = area(scenario, "inbox", 1, uint64_t{setting.slots} * stride);
  const Range credits =
      area(scenario, "credits", 0, uint64_t{setting.slots} * kNotifyCreditStrideBytes);
  LaneExecutions executions;
  for (uint32_t i = 0; i < setting.messages; ++i) {
    const uint32_t message = i + 1;
    const size_t s = i % setting.senders;
    const size_t r = i % setting.receivers;
    Execution send{.program = lane.sender, .cursors = {i}};
    send.targets = {headers[s], texts[s], inbox, credits, places[i], payloads[s]};
    send.fills = {{headers[s], message}, {texts[s], message}};
    if (hasPayload) send.fills.push_back({payloads[s], message});
    executions.sender.push_back(send);

    const uint64_t slotOffset = uint64_t{i % setting.slots} * stride;
    Execution receive{.program = lane.receiver, .cursors = {i}};
    receive.targets = {inbox, taken[r], credits};
    receive.fills = {{taken[r], 0}};
    receive.lates = {
        {kNotifyReceiverMessage,
         {part(inbox, slotOffset + kNotifyHeaderOffset, kNotifyHeaderBytes), message}}};
    receive.expects = {{part(taken[r], 0, kNotifyHeaderBytes), message},
                       {part(taken[r], kNotifyHeaderBytes, kMessageBytes), message}};
    if (hasPayload) receive.expects.push_back({places[i], message});
    executions.receiver.push_back(receive);
  }
  addActors(scenario, "sender", 0, setting.senders, executions.sender);
  addActors(scenario, "receiver", 1, setting.receivers, executions.receiver);
  return scenario;
}

Scenario signalScenario(const LanePair& lane, const Setting& setting, const Program* putAlone) {
  Scenario scenario;
  const auto payloads = areas(scenario, "payload", 0, kPayloadBytes, setting.senders);
  const auto places = areas(scenario, "place", 1, kPayloadBytes, setting.messages);
  const Range counter = area(scenario, "counter", 1, 8);
  scenario.finals.push_back({counter, setting.messages});
  std::vector<explorer::Actor> senders;
  explorer::Actor receiver{"receiver", 1, {}};
  for (uint32_t s = 0; s < setting.senders; ++s)
    senders.push_back({"sender" + std::to_string(s), 0, {}});
  for (uint32_t i = 0; i < setting.messages; ++i) {
    const uint32_t s = i % setting.senders;
    Execution put{.program = putAlone};
    put.targets = {places[i], payloads[s]};
    put.fills = {{payloads[s], i + 1}};
    Execution send{.program = lane.sender};
    send.targets = {counter, places[i], payloads[s]};
    if (putAlone != nullptr)
      senders[s].executions.push_back(put);
    else
      send.fills = put.fills;
    senders[s].executions.push_back(send);

    Execution receive{.program = lane.receiver, .cursors = {i}};
    receive.targets = {counter};
    // With several senders the count says how many have come, not which: all at the end.
    for (uint32_t m = 0; m < setting.messages; ++m)
      if (setting.senders == 1 ? m == i : i + 1 == setting.messages)
        receive.expects.push_back({places[m], m + 1});
    receiver.executions.push_back(receive);
  }
  scenario.actors = std::move(senders);
  scenario.actors.push_back(std::move(receiver));
  return scenario;
}

// --- Message lanes ---

Scenario messageScenario(const LanePair& programs, const Setting& setting, MessageForm kind) {
  Scenario scenario;
  const std::vector<MessagePrograms> messages(setting.messages, {programs, kind});
  const LaneExecutions executions = addMessageLane(scenario, setting, 0, messages);
  addActors(scenario, "sender", 0, setting.senders, executions.sender);
  addActors(scenario, "receiver", 1, setting.receivers, executions.receiver);
  return scenario;
}

ProtocolCase messageCase(const std::string& name, MessageForm kind,
                         std::function<Program(uint32_t)> sender,
                         std::function<Program(uint32_t)> receiver) {
  return {name,
          std::move(sender),
          std::move(receiver),
          [kind](const LanePair& programs, const Setting& setting) {
            return messageScenario(programs, setting, kind);
          },
          {{1, 3, 1, 1}, {2, 3, 1, 1}, {1, 3, 2, 2}, {2, 3, 2, 2}, {2, 3, 1, 2}, {2, 4, 3, 2}}};
}

}  // namespace

std::string Setting::name() const {
  return std::to_string(slots) + " slots, " + std::to_string(messages) + " messages, " +
         std::to_string(senders) + " senders, " + std::to_string(receivers) + " receivers";
}

bool explorationIsLong() {
  return std::getenv("EXPLORE_LONG") != nullptr;
}

bool explorationIsShort() {
#ifdef __SANITIZE_ADDRESS__
  return true;
#else
  return false;
#endif
}

MessageLane messageLane(uint32_t slots) {
  return {slots, kInboxPayloadOffset + static_cast<uint32_t>(kPayloadBytes)};
}

LaneExecutions addMessageLane(Scenario& scenario, const Setting& setting, int senderSide,
                              const std::vector<MessagePrograms>& messages) {
  const int near = senderSide;
  const int far = 1 - near;
  const MessageLane lane = messageLane(setting.slots);
  const auto envelopes = areas(scenario, "envelope", near, kEnvelopeBytes, setting.senders);
  const auto payloads = areas(scenario, "payload", near, kPayloadBytes, setting.senders);
  const auto learned = areas(scenario, "answer", near, kAnswerBytes, setting.senders);
  const auto buffers = areas(scenario, "buffer", far, kPayloadBytes, setting.receivers);
  const auto verdicts = areas(scenario, "verdict", far, kAnswerBytes, setting.receivers);
  const Range inbox = area(scenario, "inbox", far, uint64_t{lane.slots} * lane.inboxStrideBytes);
  const Range answers = area(scenario, "answers", near, uint64_t{lane.slots} * kAnswerSlotBytes);
  const Range free = area(scenario, "free", near, uint64_t{lane.slots} * kWordSlotBytes);
  const Range done = area(scenario, "done", far, uint64_t{lane.slots} * kWordSlotBytes);

  LaneExecutions executions;
  for (uint32_t i = 0; i < messages.size(); ++i) {
    const MessagePrograms& how = messages[i];
    const uint32_t message = i + 1;
    const uint64_t slot = i % lane.slots;
    const size_t s = i % setting.senders;
    const size_t r = i % setting.receivers;
    const Range envelope =
        part(inbox, slot * lane.inboxStrideBytes + kSequenceBytes, kEnvelopeBytes);
    const Range answer = part(answers, slot * kAnswerSlotBytes + kSequenceBytes, kAnswerBytes);

    Execution send{.program = how.programs.sender, .cursors = {i}};
    send.targets = {envelopes[s], payloads[s], inbox, answers, learned[s], free, buffers[r], done};
    send.fills = {{envelopes[s], message}};
    if (how.kind != MessageForm::kEagerEmpty) send.fills.push_back({payloads[s], message});
    if (how.kind != MessageForm::kPut) {
      send.fills.push_back({learned[s], 0});
      send.expects = {{learned[s], message}};
    }
    send.lates = {{kSenderPeerBuffer, {answer, message}}};
    executions.sender.push_back(send);

    Execution receive{.program = how.programs.receiver, .cursors = {i}};
    receive.targets = {inbox, buffers[r], payloads[s], verdicts[r], answers, done};
    receive.fills = {{verdicts[r], message}};
    if (how.kind != MessageForm::kEagerEmpty) {
      receive.fills.push_back({buffers[r], 0});
      receive.expects = {{buffers[r], message}};
    }
    for (const TargetId late : {kReceiverBuffer, kReceiverPeerPayload, kReceiverAnswer})
      receive.lates.push_back({late, {envelope, message}});
    executions.receiver.push_back(receive);
  }
  return executions;
}

void addActors(Scenario& scenario, const std::string& name, int side, uint32_t count,
               const std::vector<Execution>& executions) {
  for (uint32_t i = 0; i < count; ++i) {
    explorer::Actor actor{count > 1 ? name + std::to_string(i) : name, side, {}};
    for (size_t e = i; e < executions.size(); e += count) actor.executions.push_back(executions[e]);
    scenario.actors.push_back(std::move(actor));
  }
}

// Takes a signal of 1 as Signal::wait does: the cursor is what was taken before.
static Program takeOne() {
  ProgramBuilder program("signal-wait");
  const CursorId taken = program.cursor(1);
  program.local("counter");
  program.wait({.target = 0}, {.cursor = taken, .delta = 1});
  return program.build();
}

std::vector<ProtocolCase> shippedProtocols() {
  const auto eager = [](uint32_t slots, uint64_t bytes) {
    return EagerShape{messageLane(slots), bytes};
  };
  const auto rendezvous = [](uint32_t slots) {
    return RendezvousShape{messageLane(slots), kPayloadBytes};
  };
  const auto notify = [](uint32_t slots) {
    return NotifyShape{slots, kNotifyMessageOffset + kMessageBytes, kMessageBytes};
  };
  std::vector<ProtocolCase> cases{
      messageCase(
          "Eager", MessageForm::kEager,
          [=](uint32_t slots) { return eagerSender(eager(slots, kPayloadBytes)); },
          [=](uint32_t slots) { return eagerReceiver(eager(slots, kPayloadBytes)); }),
      messageCase(
          "EagerEmpty", MessageForm::kEagerEmpty,
          [=](uint32_t slots) { return eagerSender(eager(slots, 0)); },
          [=](uint32_t slots) { return eagerReceiver(eager(slots, 0)); }),
      messageCase(
          "RendezvousGet", MessageForm::kGet,
          [=](uint32_t slots) { return eagerSender(eager(slots, 0)); },
          [=](uint32_t slots) { return rendezvousGetReceiver(rendezvous(slots)); }),
      messageCase(
          "RendezvousPut", MessageForm::kPut,
          [=](uint32_t slots) { return rendezvousPutSender(rendezvous(slots)); },
          [=](uint32_t slots) { return rendezvousPutReceiver(rendezvous(slots)); }),
  };
  for (const uint32_t chunks : {1u, 3u})
    cases.push_back({"Staged" + std::to_string(chunks),
                     [=](uint32_t slots) { return stagedSender(stagedShape(slots, chunks)); },
                     [=](uint32_t slots) { return stagedReceiver(stagedShape(slots, chunks)); },
                     [=](const LanePair& programs, const Setting& setting) {
                       return stagedScenario(programs, setting, chunks);
                     },
                     {{1, 3, 1, 1}, {2, 3, 1, 1}, {3, 4, 1, 1}}});
  const std::vector<Setting> puts{{1, 3, 1, 1}, {2, 3, 1, 1}, {1, 3, 2, 1},
                                  {2, 3, 2, 2}, {1, 3, 2, 2}, {2, 4, 3, 1}};
  for (const bool hasPayload : {true, false})
    cases.push_back({hasPayload ? "PutNotify" : "NotifyAlone",
                     [=](uint32_t slots) {
                       return notifySender(notify(slots), hasPayload
                                                              ? twoSegments(kNotifySenderFirstData)
                                                              : PutPayload{});
                     },
                     [=](uint32_t slots) { return notifyReceiver(notify(slots)); },
                     [=](const LanePair& programs, const Setting& setting) {
                       return notifyScenario(programs, setting, hasPayload);
                     },
                     puts});
  const std::vector<Setting> signals{{1, 3, 1, 1}, {1, 3, 2, 1}, {1, 4, 3, 1}};
  cases.push_back({"PutSignal",
                   [](uint32_t) { return putSignal(twoSegments(kSignalSenderFirstData), 1); },
                   [](uint32_t) { return takeOne(); },
                   [](const LanePair& programs, const Setting& setting) {
                     return signalScenario(programs, setting, nullptr);
                   },
                   signals});
  static const Program putAlone = [] {
    ProgramBuilder program("put");
    program.remote("place");
    program.local("payload");
    program.copy({.target = 0}, {.target = 1}, kPayloadBytes);
    return program.build();
  }();
  cases.push_back({"PutThenSignal", [](uint32_t) { return signalSender(1); },
                   [](uint32_t) { return takeOne(); },
                   [](const LanePair& programs, const Setting& setting) {
                     return signalScenario(programs, setting, &putAlone);
                   },
                   signals});
  return cases;
}

}  // namespace peerlane
