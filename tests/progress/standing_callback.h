// SPDX-License-Identifier: Apache-2.0
//
// A callback on the progress thread that does not return before it is told to.
#pragma once

#include <future>
#include <memory>
#include <utility>

#include "peerlane/progress/progress.h"

namespace peerlane {

class StandingCallback {
 public:
  // Returns once the progress thread is in the callback.
  explicit StandingCallback(Progress& progress) {
    auto stands = std::make_shared<std::promise<void>>();
    const auto standing = stands->get_future();
    progress.post([stands, go = go_.get_future().share()] {
      stands->set_value();
      go.wait();
    });
    standing.wait();
  }
  ~StandingCallback() { goOn(); }
  StandingCallback(const StandingCallback&) = delete;
  StandingCallback& operator=(const StandingCallback&) = delete;

  // At the latest with the end of this object.
  void goOn() {
    if (!std::exchange(isTold_, true)) go_.set_value();
  }

 private:
  std::promise<void> go_;
  bool isTold_ = false;
};

}  // namespace peerlane
