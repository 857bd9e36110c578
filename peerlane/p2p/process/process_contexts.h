// SPDX-License-Identifier: Apache-2.0
//
// ProcessContexts: the contexts of the C API: one for each GPU and use, made from the environment
// when it is first asked for, and kept until unwarm(). Thread-safe. Owner: P2pProcess.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "peerlane/core/mutex.h"
#include "peerlane/session/context/context.h"

namespace peerlane::p2p {

// A half of PEERLANE_STAGING_BYTES, which is all that a communicator may have for staging: one half
// is for messages, the other for put and get. Not less than either works with.
uint64_t stagingHalf(const Config& config);

using OptionalGpu = std::optional<int>;  // nothing: host memory alone

class ProcessContexts {
 public:
  enum class Use : uint8_t {
    kPlain,    // connects to others
    kRoots,    // listens, too
    kNetwork,  // connects by the network alone
    kMirror,   // connects to a context of kPlain or kRoots of the same GPU
  };

  // Errors: as Context::create(), by the names of the variables that are wrong.
  Result<std::shared_ptr<Context>> get(OptionalGpu gpu, Use use);
  // A context for memory of the GPU, or of the host: one that is there already, if possible.
  Result<std::shared_ptr<Context>> any(OptionalGpu gpu);
  // Drops the contexts that nobody else holds.
  void unwarm();

 private:
  Result<std::shared_ptr<Context>> make(OptionalGpu gpu, Use use);

  Mutex mutex_;  // held while a context is made, so that it is made once
  std::map<std::pair<OptionalGpu, Use>, std::shared_ptr<Context>> contexts_
      PEERLANE_GUARDED_BY(mutex_);
};

}  // namespace peerlane::p2p
