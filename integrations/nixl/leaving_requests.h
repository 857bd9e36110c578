// SPDX-License-Identifier: Apache-2.0
//
// LeavingRequests: the requests whose release was refused because bytes still move: those that NIXL
// still has (it frees them at the next release), and those that it has freed, which this object
// keeps until nothing touches memory any more. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "integrations/nixl/nixl_request.h"

namespace peerlane::nixl {

class LeavingRequests {
 public:
  void refused(const NixlRequest* request);
  // Before NIXL's request is deleted.
  void forget(const NixlRequest* request);
  void take(std::unique_ptr<NixlRequest> request);
  // The memory that bytes of one of them may still move into or out of.
  std::set<const LocalMemory*> used() const;
  // Deletes those that have ended. A connection may be closed by that: not on a progress thread.
  void sweep();

 private:
  mutable std::mutex mutex_;
  std::set<const NixlRequest*> refused_;
  std::vector<std::unique_ptr<NixlRequest>> taken_;
};

}  // namespace peerlane::nixl
