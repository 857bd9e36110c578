// SPDX-License-Identifier: Apache-2.0
//
// SpareVector: the room of a vector that a thread is done with, for its next vector of that type.
// malloc() would give a long list back to the system and take it anew for each post, and the first
// touch of each page then costs more than the list itself. Each thread keeps one of each type, so
// any may call.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace peerlane {

template <typename T>
class SpareVector {
  static_assert(std::is_trivially_destructible_v<T>, "elements are left in the room");

 public:
  // Bounds what a thread keeps: the pieces of some hundred thousand blocks.
  static constexpr std::size_t kMostBytes = std::size_t{8} << 20;

  // An empty vector with room for `count`.
  static std::vector<T> take(std::size_t count) {
    std::vector<T> taken = takeAny(count);
    taken.clear();
    taken.reserve(count);
    return taken;
  }
  // At least `count` elements of any value.
  static std::vector<T> takeFilled(std::size_t count) {
    std::vector<T> taken = takeAny(count);
    if (taken.size() < count) taken.resize(count);
    return taken;
  }
  // Keeps the larger of the two rooms.
  static void giveBack(std::vector<T> used) {
    if (Kept::ended || used.capacity() > kMostBytes / sizeof(T)) return;
    if (used.capacity() > kept().spare.capacity()) kept().spare = std::move(used);
  }

 private:
  struct Kept {
    ~Kept() { ended = true; }
    std::vector<T> spare;
    // Objects that end after the thread's own, as static ones do, may still take and give back.
    static constinit inline thread_local bool ended = false;
  };
  static Kept& kept() {
    thread_local Kept ofThread;
    return ofThread;
  }
  // The room given back last, unless it is much too large, because whoever takes it may keep it.
  static std::vector<T> takeAny(std::size_t count) {
    std::vector<T> taken;
    if (!Kept::ended && kept().spare.capacity() / 4 <= count) taken.swap(kept().spare);
    return taken;
  }
};

}  // namespace peerlane
