// SPDX-License-Identifier: Apache-2.0
#include "peerlane/channel/trigger/doorbell_server.h"

#include <algorithm>
#include <map>

namespace peerlane {
namespace {

// Of the process. Leaked: queues may end while the process does.
struct Servers {
  Mutex mutex;
  std::map<Progress*, std::weak_ptr<DoorbellServer>> all PEERLANE_GUARDED_BY(mutex);
};
Servers& servers() {
  static auto* const all = new Servers;
  return *all;
}

}  // namespace

Result<std::shared_ptr<DoorbellServer>> DoorbellServer::of(Progress& progress,
                                                           Proxy::Duration spin) {
  const MutexLock lock(servers().mutex);
  std::erase_if(servers().all, [](const auto& each) { return each.second.expired(); });
  std::weak_ptr<DoorbellServer>& known = servers().all[&progress];
  if (auto server = known.lock()) return server;
  std::shared_ptr<DoorbellServer> server(new DoorbellServer(progress));
  PEERLANE_ASSIGN(server->proxy_,
                  Proxy::create([at = server.get()] { return at->turn(); }, {.spin = spin}));
  PEERLANE_RETURN_IF_ERROR(server->proxy_->start());
  known = server;
  return server;
}

DoorbellServer::~DoorbellServer() {
  if (proxy_ != nullptr) proxy_->stop();
}

void DoorbellServer::add(DoorbellQueue& queue) {
  const MutexLock lock(mutex_);
  queues_.push_back(&queue);
}

void DoorbellServer::remove(DoorbellQueue& queue) {
  const MutexLock lock(mutex_);
  std::erase(queues_, &queue);
}

Proxy::Turn DoorbellServer::turn() {
  Proxy::Turn all = Proxy::Turn::kIdle;
  {
    const MutexLock lock(mutex_);
    for (DoorbellQueue* const queue : queues_) all = std::max(all, queue->look());
  }
  // What a link has to do for entries that it took, and their answers. Without the lock: a turn
  // calls functions of the user's.
  if (all != Proxy::Turn::kIdle && progress_.turn()) all = Proxy::Turn::kMoved;
  return all;
}

}  // namespace peerlane
