// SPDX-License-Identifier: Apache-2.0
//
// EndCalls: the functions that are to be called once an operation has ended, one after the other,
// in the order in which they were given. Made when the first one is given; may outlive the
// operation. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "peerlane/core/mutex.h"
#include "peerlane/core/status.h"
#include "peerlane/progress/progress.h"

namespace peerlane {

class EndCalls : public std::enable_shared_from_this<EndCalls> {
 public:
  using Function = std::function<void(const Status&)>;

  // Before the end it is kept, and after it called: by this thread at once, or by the thread that
  // is calling those before it.
  void add(Function function);
  // Once. The progress thread calls the functions that were given by now. Where the engine has
  // stopped they are dropped, as everything that is posted there.
  void end(Progress& progress, const Status& status);

 private:
  void callAll();
  void dropIfUncalled();

  Status status_;  // written before hasEnded_, and constant from then on
  Mutex mutex_;
  std::vector<Function> given_ PEERLANE_GUARDED_BY(mutex_);  // and not called yet
  bool hasEnded_ PEERLANE_GUARDED_BY(mutex_) = false;
  bool isCalling_ PEERLANE_GUARDED_BY(mutex_) = false;  // a thread is, or will be: it is posted
  bool isPosted_ PEERLANE_GUARDED_BY(mutex_) = false;   // and has not begun
};

}  // namespace peerlane
