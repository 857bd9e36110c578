// SPDX-License-Identifier: Apache-2.0
//
// GuestList: the connections to a listener that have not yet authenticated, counted in all and by
// origin (a user, an address), so that one origin cannot take all the room. External
// synchronization required.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "peerlane/core/status.h"

namespace peerlane {

class GuestList {
 public:
  struct Limits {
    size_t inAll;
    size_t ofOne;
  };
  // One place, free again when this ends; may outlive the list.
  class Place {
   public:
    Place() = default;
    Place(Place&&) = default;
    Place& operator=(Place&& other) noexcept {
      std::swap(counts_, other.counts_);  // the place held here before ends with the other
      std::swap(origin_, other.origin_);
      return *this;
    }
    ~Place() {
      if (!counts_) return;
      --counts_->inAll;
      if (const auto found = counts_->of.find(origin_); --found->second == 0)
        counts_->of.erase(found);
    }

   private:
    friend class GuestList;
    struct Counts {
      size_t inAll = 0;
      std::map<std::string, size_t> of;
    };
    std::shared_ptr<Counts> counts_;
    std::string origin_;
  };

  explicit GuestList(Limits limits) : limits_(limits) {}
  size_t size() const { return counts_->inAll; }

  // kTryAgain, with the numbers, when there is no place.
  Result<Place> admit(const std::string& origin) {
    size_t& ofOne = counts_->of[origin];
    if (counts_->inAll < limits_.inAll && ofOne < limits_.ofOne) {
      Place place;
      place.counts_ = counts_;
      place.origin_ = origin;
      ++counts_->inAll;
      ++ofOne;
      return place;
    }
    const size_t waiting = ofOne;
    if (waiting == 0) counts_->of.erase(origin);
    return Status(Code::kTryAgain,
                  std::to_string(counts_->inAll) + " connections wait already (at most " +
                      std::to_string(limits_.inAll) + "), " + std::to_string(waiting) + " of " +
                      origin + " (at most " + std::to_string(limits_.ofOne) + ")");
  }

 private:
  const Limits limits_;
  const std::shared_ptr<Place::Counts> counts_ = std::make_shared<Place::Counts>();
};

}  // namespace peerlane
