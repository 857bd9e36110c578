// SPDX-License-Identifier: Apache-2.0
//
// HeldTurns: nobody has a turn of an engine while this lives, so nothing that comes over its links
// is looked at; its event loop goes on and hears what its sockets say. External synchronization
// required. Meanwhile nobody may wait on the engine, which would take turns: only ask.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "peerlane/progress/progress.h"

namespace peerlane {

class HeldTurns {
 public:
  explicit HeldTurns(Progress& progress) : hold_(std::make_shared<Hold>()) {
    progress.add(hold_);
    thread_ = std::thread([&progress, hold = hold_] {
      hold->holder.store(std::this_thread::get_id());
      while (!hold->held.load()) {
        progress.turn();
        std::this_thread::yield();
      }
    });
    while (!hold_->held.load()) std::this_thread::yield();
  }
  ~HeldTurns() { letGo(); }
  HeldTurns(const HeldTurns&) = delete;
  HeldTurns& operator=(const HeldTurns&) = delete;

  void letGo() {
    hold_->letGo.store(true);
    if (thread_.joinable()) thread_.join();
  }

 private:
  struct Hold final : Task {
    Turn turn() override {
      if (letGo.load()) return Turn::kFinished;
      if (std::this_thread::get_id() != holder.load()) return Turn::kIdle;
      held.store(true);
      while (!letGo.load()) std::this_thread::yield();
      return Turn::kFinished;
    }
    std::atomic<std::thread::id> holder;
    std::atomic<bool> held{false};
    std::atomic<bool> letGo{false};
  };

  const std::shared_ptr<Hold> hold_;
  std::thread thread_;
};

}  // namespace peerlane
