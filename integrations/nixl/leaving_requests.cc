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

bool LeavingRequests::use(const LocalMemory& memory) const {
  const auto moves = [&](const auto& request) {
    return request->uses(memory) && !request->isDrained();
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::any_of(refused_.begin(), refused_.end(), moves) ||
         std::any_of(taken_.begin(), taken_.end(), moves);
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
