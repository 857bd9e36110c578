// SPDX-License-Identifier: Apache-2.0
#include "explore/mailbox_protocol.h"

namespace peerlane {
namespace {

const Operand kThisEntry{.cursor = 0, .delta = 1};

Target entriesAt(Side side, uint32_t slots) {
  return {.name = "entries",
          .side = side,
          .cursor = 0,
          .slots = slots,
          .strideBytes = kMailboxEntryBytes};
}

ProgramBuilder poster(const char* name, uint32_t slots) {
  ProgramBuilder program(name);
  program.cursor(1);
  program.local("entry");
  program.target(entriesAt(Side::kRemote, slots));
  program.remote("doorbell");
  program.local("completion");
  return program;
}

ProgramBuilder agent(const char* name, uint32_t slots) {
  ProgramBuilder program(name);
  program.cursor(1);
  program.target(entriesAt(Side::kLocal, slots));
  program.local("work");
  program.local("doorbell");
  program.remote("completion");
  return program;
}

}  // namespace

Program mailboxPost(uint32_t slots) {
  ProgramBuilder program = poster("mailbox-post", slots);
  program
      .wait({.target = kPosterCompletion}, {.cursor = 0, .delta = 1 - static_cast<int64_t>(slots)})
      .copy({.target = kPosterEntries}, {.target = kPosterEntry}, kMailboxEntryBytes)
      .store({.target = kPosterDoorbell}, kThisEntry, Order::kRelease);
  return program.build();
}

Program mailboxAwait(uint32_t slots) {
  ProgramBuilder program = poster("mailbox-await", slots);
  program.wait({.target = kPosterCompletion}, kThisEntry);
  return program.build();
}

Program mailboxTake(uint32_t slots) {
  ProgramBuilder program = agent("mailbox-take", slots);
  program.wait({.target = kAgentDoorbell}, kThisEntry)
      .copy({.target = kAgentWork}, {.target = kAgentEntries}, kMailboxEntryBytes);
  return program.build();
}

Program mailboxComplete(uint32_t slots) {
  ProgramBuilder program = agent("mailbox-complete", slots);
  program.store({.target = kAgentCompletion}, kThisEntry, Order::kRelease);
  return program.build();
}

}  // namespace peerlane
