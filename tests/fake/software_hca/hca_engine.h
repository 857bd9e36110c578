// SPDX-License-Identifier: Apache-2.0
//
// The thread that is the device: takes packets, drives the pairs that have something under way, and
// sleeps when nothing is to be done. One for each context.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_ring.h"

namespace peerlane::softhca {

class Engine {
 public:
  explicit Engine(Context& context);
  ~Engine();
  Engine(const Engine&) = delete;

  // A thread that polls in vain does a turn of the engine, unless another does: where processors
  // are few, it would only keep the engine from running.
  void assist();

 private:
  void run();
  // One turn; true: something was done.
  bool turn(uint64_t now);
  void noticeDevice();
  bool takePackets(uint64_t now);
  bool takeAnswers(Lane& lane, uint64_t now);
  bool takeRequests(Lane& lane, uint64_t now);
  bool drivePairs(uint64_t now);
  bool mustLook() const;
  void sleep(uint64_t until, bool hasWork);
  template <class Use>
  void forLanes(Use&& use) const;

  Context& context_;
  std::atomic<bool> isStopping_{false};
  // Under the context's lock: when a turn has something to do, and whether anything is under way.
  uint64_t nextTime_ = UINT64_MAX;
  bool hasWork_ = false;
  uint32_t portChanges_, gidChanges_, pkeyChanges_;
  std::thread thread_;
};

}  // namespace peerlane::softhca
