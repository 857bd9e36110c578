// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/explain_program.h"

#include <fmt/core.h>

#include <utility>

#include "peerlane/channel/trigger/triggered_queue.h"
#include "tools/report/failure_report.h"
#include "tools/report/text_table.h"

namespace peerlane {
namespace {

constexpr uint64_t kPutBytes = 4096;
constexpr uint32_t kPeersSignal = 8;  // the signal of the peer to which is added
constexpr uint32_t kOwnSignal = 9;    // the signal of this side that is awaited

Status post(TriggeredQueue& queue, const Trial::Pair& pair) {
  const Block block{.local = &pair.local, .remote = &pair.remote, .bytes = kPutBytes};
  PEERLANE_RETURN_IF_ERROR(queue.put({&block, 1}));
  PEERLANE_RETURN_IF_ERROR(queue.signal(kPeersSignal));
  return queue.receive(kOwnSignal, 1);
}

// Every line of a text, moved to the right.
std::string indented(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    out += "  " + text.substr(at, end - at) + "\n";
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return out;
}

std::string tableOf(std::span<const TriggerRow> rows) {
  TextTable table("rlrl");
  table.addRow({"target", "name", "bytes", "reached by loads and stores of this process"});
  for (size_t i = 0; i < rows.size(); ++i)
    table.addRow({std::to_string(i), rows[i].name, std::to_string(rows[i].bytes),
                  rows[i].host != nullptr ? "yes" : "no"});
  return table.toString();
}

// A commit and a peek of this emitter, which are taken back.
Result<std::string> programsOf(const Trial& trial, const Trial::Pair& pair,
                               TriggerEmitter emitter) {
  PEERLANE_ASSIGN(TriggeredQueue queue, TriggeredQueue::create(trial.peer(), {.emitter = emitter}));
  PEERLANE_RETURN_IF_ERROR(post(queue, pair));
  PEERLANE_ASSIGN(const TriggerProgram commit, queue.commit());
  PEERLANE_ASSIGN(const TriggerProgram peek, queue.peek(commit.id.number));
  std::string text =
      commit.program->toString() + peek.program->toString() + tableOf(queue.targets());
  PEERLANE_RETURN_IF_ERROR(queue.abortPeek(peek.id));
  PEERLANE_RETURN_IF_ERROR(queue.rollback(commit.id));
  return text;
}

}  // namespace

Result<std::string> explainQueues(Trial& trial, TrialMemory local, TrialMemory remote) {
  PEERLANE_ASSIGN(const Trial::Pair pair, trial.pairFor(local, remote, kPutBytes));
  PEERLANE_ASSIGN(TriggeredQueue open, TriggeredQueue::create(trial.peer()));
  std::string text =
      fmt::format("triggered queue, a put of {} bytes, signal {}, receive of {}: ", kPutBytes,
                  kPeersSignal, kOwnSignal);
  if (const Status posted = post(open, pair); !posted.isOk())
    return indented(text + "not possible: " + failureText(posted));
  text += "emitter " + open.emitter() + "; " + open.whyNotOther() + "\n";
  for (const auto& [emitter, name] : {std::pair(TriggerEmitter::kMapped, "mapped"),
                                      std::pair(TriggerEmitter::kDoorbell, "doorbell")}) {
    const auto programs = programsOf(trial, pair, emitter);
    text += fmt::format("emitter {}:", name);
    text += programs.isOk() ? "\n" + indented(*programs)
                            : " not possible: " + failureText(programs.status()) + "\n";
  }
  return indented(text);
}

}  // namespace peerlane
