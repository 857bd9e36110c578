// SPDX-License-Identifier: Apache-2.0
#include "peerlane/p2p/process/p2p_process.h"

#include "peerlane/os/process.h"

namespace peerlane::p2p {
namespace {

Result<ProcessToken> drawToken() {
  ProcessToken token{};
  PEERLANE_RETURN_IF_ERROR(fillRandom(std::as_writable_bytes(std::span(token))));
  return token;
}

}  // namespace

struct P2pProcess::Made {
  uint64_t forks;
  P2pProcess* process;
};

// Release by the thread that made it, acquire by every call.
constinit std::atomic<P2pProcess::Made*> P2pProcess::current{nullptr};

P2pProcess& P2pProcess::instance() {
  Made* known = current.load(std::memory_order_acquire);
  while (known == nullptr || known->forks != forkGeneration()) {
    // The parent's is neither used nor destroyed here: threads that this process does not have may
    // hold its locks.
    auto* const fresh =
        new Made{forkGeneration(), new P2pProcess(known == nullptr ? nullptr : known->process)};
    if (current.compare_exchange_strong(known, fresh)) return *fresh->process;
    delete fresh->process;
    delete fresh;
  }
  return *known->process;
}

P2pProcess::P2pProcess(const P2pProcess* parent)
    : segments_(drawToken().value()), allocations_(contexts_, segments_) {
  if (parent == nullptr) return;
  communicators_.countFrom(parent->communicators_);
  streams_.countFrom(parent->streams_);
}

Status P2pProcess::importSegment(const SegmentName& name) {
  PEERLANE_RETURN_IF_ERROR(imports_.add(name));
  for (const auto& pair : communicators_.with(name.process)) pair->remoteSegments().ask(name);
  return Status::ok();
}

bool P2pProcess::unimportSegment(const SegmentName& name) {
  if (!imports_.remove(name)) return false;
  for (const auto& pair : communicators_.with(name.process)) pair->remoteSegments().forget(name);
  return true;
}

}  // namespace peerlane::p2p
