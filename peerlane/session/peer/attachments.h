// SPDX-License-Identifier: Apache-2.0
//
// Attachments: what higher floors keep with one peer: at most one object of each kind, made when
// first asked for, which lives as long as the peer. Owned by PeerCore; thread-safe.
#pragma once

#include <memory>
#include <type_traits>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/progress/progress.h"

namespace peerlane {

// Known by name alone here.
class CommunicatorNumbers;
class NotificationInbox;
class NotifyNumbers;
class PortBootstrap;
class PeerStaging;

class Attachments {
 public:
  template <typename T>
  class Place {
   public:
    explicit Place(Attachments& all) : all_(all) {}
    // The object here. `make` is called, under the lock of all places, where there is none yet. One
    // that is a Task has a turn whenever the peer has one, under that lock.
    template <typename Make>
    std::shared_ptr<T> getOr(const Make& make) {
      const MutexLock lock(all_.mutex_);
      if (!object_) {
        object_ = make();
        if constexpr (std::is_base_of_v<Task, T>) all_.turned_.push_back(object_);
      }
      return object_;
    }

   private:
    Attachments& all_;
    // Under all_.mutex_. Without the attribute: clang reads it at the end of Attachments, after it
    // has made the places below of this template, and so ignores it.
    std::shared_ptr<T> object_;
  };

  Place<CommunicatorNumbers> communicatorNumbers{*this};
  Place<NotificationInbox> notificationInbox{*this};
  Place<NotifyNumbers> notifyNumbers{*this};
  Place<PortBootstrap> portBootstrap{*this};
  Place<PeerStaging> peerStaging{*this};

  // By the thread that has the turn. True when something moved.
  bool turn() {
    const MutexLock lock(mutex_);
    bool moved = false;
    for (const auto& task : turned_) moved |= task->turn() == Task::Turn::kMoved;
    return moved;
  }

 private:
  Mutex mutex_;
  std::vector<std::shared_ptr<Task>> turned_ PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane
