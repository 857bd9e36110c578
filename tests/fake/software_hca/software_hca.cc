// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/software_hca.h"

#include <cerrno>
#include <thread>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

using namespace peerlane::softhca;

namespace {

void changeDevice(Context& context, std::atomic<uint32_t>& changes) {
  ++changes;
  // Other processes see it when their engines look, which is soon.
  for (int i = 0; i < kMostEndpoints; ++i)
    if (context.fabric.endpoint(i).isUsed != 0 &&
        context.fabric.endpoint(i).device == context.device.index())
      context.fabric.wake(i);
}

}  // namespace

extern "C" {

int software_hca_counts(ibv_qp* face, SoftwareHcaCounts* counts) {
  QueuePair& pair = QueuePair::of(face);
  const Context::Locked lock(pair.context);
  *counts = {};
  pair.addCounts(*counts);
  return 0;
}

int software_hca_context_counts(ibv_context* face, SoftwareHcaCounts* counts) {
  Context& context = Context::of(face);
  const Context::Locked lock(context);
  *counts = context.ended;
  for (const auto& [number, pair] : context.pairs()) pair->addCounts(*counts);
  return 0;
}

int software_hca_reset_counts(ibv_context* face) {
  Context& context = Context::of(face);
  const Context::Locked lock(context);
  context.ended = {};
  for (const auto& [number, pair] : context.pairs()) pair->resetCounts();
  return 0;
}

int software_hca_measure(ibv_context* face, int isMeasured) {
  Context::of(face).measured = isMeasured != 0;
  return 0;
}

int software_hca_objects(ibv_context* face) {
  Context& context = Context::of(face);
  const Context::Locked lock(context);
  return static_cast<int>(context.domains + context.completionQueues + context.sharedQueues +
                          context.regions.size() + context.pairs().size());
}

int software_hca_hold(ibv_context* face) {
  Context& context = Context::of(face);
  const Context::Locked lock(context);
  context.allow(0);
  return 0;
}

int software_hca_step(ibv_context* face, uint64_t requests) {
  Context& context = Context::of(face);
  const Context::Locked lock(context);
  context.allow(static_cast<int64_t>(requests));
  return 0;
}

int software_hca_release(ibv_context* face) {
  Context& context = Context::of(face);
  const Context::Locked lock(context);
  context.allow(-1);
  return 0;
}

int software_hca_settle(ibv_context* face) {
  Context& context = Context::of(face);
  for (;;) {
    {
      const Context::Locked lock(context);
      if (context.isSettled()) return 0;
    }
    std::this_thread::yield();
  }
}

int software_hca_inject(ibv_context* face, uint32_t pair, SoftwareHcaFault fault, uint64_t after,
                        int64_t count, int error) {
  return Context::of(face).faults.order(fault, pair, after, count, error) ? 0 : EINVAL;
}

int software_hca_set_port(ibv_context* face, int isUp) {
  Context& context = Context::of(face);
  context.device.record().portState = isUp != 0 ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  changeDevice(context, context.device.record().portChanges);
  return 0;
}

int software_hca_change_gids(ibv_context* face) {
  Context& context = Context::of(face);
  changeDevice(context, context.device.record().gidChanges);
  return 0;
}

int software_hca_change_pkeys(ibv_context* face) {
  Context& context = Context::of(face);
  changeDevice(context, context.device.record().pkeyChanges);
  return 0;
}

int software_hca_remove_device(ibv_context* face) {
  Context& context = Context::of(face);
  const Context::Locked lock(context);
  context.remove();
  return 0;
}

int software_hca_revoke(ibv_mr* region) {
  Context& context = Context::of(region->context);
  const Context::Locked lock(context);
  context.regions.revoke(&Region::of(region));
  return 0;
}

int software_hca_break_pair(ibv_qp* face) {
  QueuePair& pair = QueuePair::of(face);
  const Context::Locked lock(pair.context);
  pair.raise(IBV_EVENT_QP_FATAL);
  pair.fail(IBV_WC_WR_FLUSH_ERR);
  pair.context.wakeEngine();
  return 0;
}

int software_hca_overrun(ibv_cq* face) {
  CompletionQueue& queue = CompletionQueue::of(face);
  const Context::Locked lock(queue.owner());
  queue.overrun();
  return 0;
}

}  // extern "C"
