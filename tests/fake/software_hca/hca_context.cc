// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_context.h"

#include <dlfcn.h>

#include <cerrno>

#include "tests/fake/software_hca/hca_engine.h"
#include "tests/fake/software_hca/hca_queue_pair.h"
#include "tests/fake/software_hca/hca_tables.h"

namespace peerlane::softhca {
namespace {

struct Opened {
  Mutex mutex;
  std::vector<Context*> all PEERLANE_GUARDED_BY(mutex);
};
Opened& opened() {
  static Opened contexts;
  return contexts;
}

// GPUs in software, if this process has some, say when they flush.
void listenToGpus() {
  using Listen = void (*)(void (*)());
  const auto listen = reinterpret_cast<Listen>(dlsym(RTLD_DEFAULT, "software_gpu_on_flush"));
  if (listen != nullptr) listen(&Context::flushAll);
}

}  // namespace

void Context::flushAll() {
  Opened& contexts = opened();
  const MutexLock lock(contexts.mutex);
  for (Context* const each : contexts.all) {
    const Locked locked(*each);
    each->regions.placeLate();
  }
}

Context* Context::open(Device& device) {
  const int endpoint = device.fabric().addEndpoint(device.index());
  if (endpoint < 0) {
    errno = EMFILE;
    return nullptr;
  }
  Settings settings = Settings::read();
  for (const std::string& name : settings.dmabufRefused)
    if (name == device.name) settings.dmabufError = EINVAL;
  return new Context(device, std::move(settings), endpoint);
}

Context::Context(Device& of, Settings with, int at)
    : device(of),
      fabric(of.fabric()),
      settings(std::move(with)),
      endpoint(at),
      outgoing_(kMostEndpoints),
      random_(settings.seed) {
  verbs_.priv = reinterpret_cast<verbs_ex_private*>(this);
  verbs_.sz = sizeof verbs_;
  verbs_.context.device = &of;
  verbs_.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
  verbs_.context.cmd_fd = -1;
  verbs_.context.async_fd = events.fd();
  verbs_.context.num_comp_vectors = 1;
  pthread_mutex_init(&verbs_.context.mutex, nullptr);
  fillTables(verbs_);
  engine_ = std::make_unique<Engine>(*this);
  if (!settings.isDmabufLate) return;
  listenToGpus();
  const MutexLock lock(opened().mutex);
  opened().all.push_back(this);
}

Context::~Context() {
  {
    const MutexLock lock(opened().mutex);
    std::erase(opened().all, this);
  }
  engine_.reset();
  fabric.removeEndpoint(endpoint);
  pthread_mutex_destroy(&verbs_.context.mutex);
}

void Context::remove() {
  if (isRemoved_.exchange(true)) return;
  raise({{.port_num = 1}, IBV_EVENT_DEVICE_FATAL});
  for (const auto& [number, pair] : pairs_) pair->fail(IBV_WC_WR_FLUSH_ERR);
}

void Context::add(QueuePair* pair) {
  pairs_.emplace(pair->qp_base.qp_num, pair);
}

void Context::remove(QueuePair* pair) {
  fabric.removeQueuePair(pair->qp_base.qp_num);
  pairs_.erase(pair->qp_base.qp_num);
  for (QueuePair* rung = rung_.exchange(nullptr); rung != nullptr; rung = rung->nextRung) {
    rung->isRung = false;
    makeActive(*rung);
  }
  std::erase(active_, pair);
  pair->addCounts(ended);
}

QueuePair* Context::find(uint32_t number) const {
  const auto found = pairs_.find(number);
  return found == pairs_.end() ? nullptr : found->second;
}

void Context::failUsersOf(const CompletionQueue& queue) {
  for (const auto& [number, pair] : pairs_) {
    if (&pair->sendQueue() != &queue && &pair->receiveQueue() != &queue) continue;
    if (pair->state() == IBV_QPS_ERR) continue;
    pair->raise(IBV_EVENT_QP_FATAL);
    pair->fail(IBV_WC_WR_FLUSH_ERR);
  }
}

bool Context::ring(QueuePair& pair) {
  // Partner: the engine takes it off the stack, clears isRung, and only then looks at the queue.
  if (!pair.isRung.exchange(true, std::memory_order_seq_cst)) {
    QueuePair* first = rung_.load(std::memory_order_relaxed);
    do {
      pair.nextRung = first;
    } while (!rung_.compare_exchange_weak(first, &pair, std::memory_order_seq_cst));
  }
  return fabric.wake(endpoint, true);
}

void Context::makeActive(QueuePair& pair) {
  if (pair.isActive) return;
  pair.isActive = true;
  active_.push_back(&pair);
}

Lane* Context::laneTo(int to) {
  if (to < 0) return nullptr;
  Outgoing& outgoing = outgoing_[static_cast<size_t>(to)];
  const uint32_t generation = fabric.endpoint(to).generation;
  if (outgoing.lane != nullptr && outgoing.generation == generation) return outgoing.lane;
  if (outgoing.lane != nullptr) fabric.leaveLane(outgoing.lane, Lane::kWriter);
  outgoing = {fabric.openLane(endpoint, to), generation};
  return outgoing.lane;
}

void Context::wakePeer(uint32_t pair) {
  const int to = fabric.endpointOf(pair);
  if (to >= 0 && to != endpoint) fabric.wake(to);
}

void Context::assist() {
  if (settings.assists) engine_->assist();
}

bool Context::mayBegin() {
  int64_t left = allowance_.load();
  while (left > 0)
    if (allowance_.compare_exchange_weak(left, left - 1)) return true;
  return left < 0;
}

void Context::allow(int64_t requests) {
  allowance_ = requests;
  wakeEngine();
}

bool Context::isSettled() const {
  if (!isHeld() && rung_.load() != nullptr) return false;
  for (const QueuePair* pair : active_)
    if (!pair->isSettled()) return false;
  return true;
}

}  // namespace peerlane::softhca
