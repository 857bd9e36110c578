// SPDX-License-Identifier: Apache-2.0
//
// CountedMap: an ordered map whose elements are counted as they are looked at (Steps), for what
// grows with the regions of a program: those that are registered, lent, imported, asked for, taken
// back. A look-up counts one, a walk as many as there are elements, also where it ends before the
// last. External synchronization required, as for a map.
#pragma once

#include <cstddef>
#include <map>
#include <utility>

#include "peerlane/core/counted_list.h"

namespace peerlane {

template <typename Key, typename Value>
class CountedMap {
  using Map = std::map<Key, Value>;

 public:
  using iterator = typename Map::iterator;              // NOLINT(readability-identifier-naming)
  using const_iterator = typename Map::const_iterator;  // NOLINT(readability-identifier-naming)

  bool empty() const { return elements_.empty(); }
  size_t size() const { return elements_.size(); }

  iterator find(const Key& key) { return counted().find(key); }
  const_iterator find(const Key& key) const { return counted().find(key); }
  bool contains(const Key& key) const { return counted().contains(key); }
  Value& at(const Key& key) { return counted().at(key); }
  const Value& at(const Key& key) const { return counted().at(key); }
  Value& operator[](const Key& key) { return counted()[key]; }
  void erase(iterator at) { counted().erase(at); }
  size_t erase(const Key& key) { return counted().erase(key); }
  void clear() { elements_.clear(); }

  // A walk.
  iterator begin() {
    Steps::add(elements_.size());
    return elements_.begin();
  }
  const_iterator begin() const {
    Steps::add(elements_.size());
    return elements_.begin();
  }
  iterator end() { return elements_.end(); }
  const_iterator end() const { return elements_.end(); }

 private:
  Map& counted() {
    Steps::add(1);
    return elements_;
  }
  const Map& counted() const {
    Steps::add(1);
    return elements_;
  }

  Map elements_;
};

}  // namespace peerlane
