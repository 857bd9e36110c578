// SPDX-License-Identifier: Apache-2.0
#include "integrations/nixl/leaving_requests.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace peerlane::nixl {

void LeavingRequests::refused(const NixlRequest* request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  refused_.insert(request);
}

void LeavingRequests::forget(const NixlRequest* request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  refused_.erase(request);
}

void LeavingRequests::take(std::unique_ptr<NixlRequest> request) {
  const std::lock_guard<std::mutex> lock(mutex_);
  refused_.erase(request.get());
  taken_.push_back(std::move(request));
}

std::set<const LocalMemory*> LeavingRequests::used() const {
  std::set<const LocalMemory*> used;
  const auto add = [&used](const NixlRequest& request) {
    if (!request.isDrained())
      for (const NixlRequest::Entry& entry : request.held()) used.insert(entry.local.get());
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& request : refused_) add(*request);
  for (const auto& request : taken_) add(*request);
  return used;
}

void LeavingRequests::sweep() {
  std::vector<std::unique_ptr<NixlRequest>> ended;  // deleted after the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto begin = std::partition(taken_.begin(), taken_.end(),
                                    [](const auto& request) { return !request->isDrained(); });
  std::move(begin, taken_.end(), std::back_inserter(ended));
  taken_.erase(begin, taken_.end());
}

}  // namespace peerlane::nixl
