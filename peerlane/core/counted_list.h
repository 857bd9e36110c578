// SPDX-License-Identifier: Apache-2.0
//
// CountedList: a vector whose elements are counted as they are looked at, for lists that a program
// may make as long as it likes (the regions of a post). A walk over such a list must not stand
// inside another walk over it, or over blocks: tests post lists of two lengths and compare the
// steps, because time says nothing on a busy machine. External synchronization required, as for a
// vector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace peerlane {

// Of the calling thread. One for an element that is looked at by its number; a walk counts as many
// as there are elements, also where it ends before the last.
class Steps {
 public:
  static void add(uint64_t steps) { ofThread() += steps; }
  static uint64_t taken() { return ofThread(); }

 private:
  static uint64_t& ofThread() {
    static thread_local uint64_t steps = 0;
    return steps;
  }
};

template <typename T>
class CountedList {
 public:
  CountedList() = default;
  CountedList(std::initializer_list<T> elements) : elements_(elements) {}

  bool empty() const { return elements_.empty(); }
  size_t size() const { return elements_.size(); }
  const T& operator[](size_t number) const {
    Steps::add(1);
    return elements_[number];
  }
  const T& front() const { return (*this)[0]; }
  auto begin() const {
    Steps::add(elements_.size());
    return elements_.begin();
  }
  auto end() const { return elements_.end(); }
  operator std::span<const T>() const {
    Steps::add(elements_.size());
    return elements_;
  }

  // NOLINTNEXTLINE(readability-identifier-naming): as a vector has it
  void push_back(T element) { elements_.push_back(std::move(element)); }
  void clear() { elements_.clear(); }

 private:
  std::vector<T> elements_;
};

}  // namespace peerlane
