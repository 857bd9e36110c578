// SPDX-License-Identifier: Apache-2.0
//
// RecyclingAllocator: for objects that one thread makes and another thread ends, all the time. It
// keeps the memory of an ended object for the next object of the type. free() would instead lock
// the arena of the thread that made it. A thread that needs memory takes all returned memory at
// once, so the list has no ABA problem. Taken memory is kept until its thread ends, returned memory
// that no thread has taken for the life of the process; in all as much as was in use at once.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

namespace peerlane {

template <typename T>
class RecyclingAllocator {
 public:
  using value_type = T;
  RecyclingAllocator() = default;
  template <typename Other>
  RecyclingAllocator(const RecyclingAllocator<Other>& /*other*/) {}

  T* allocate(std::size_t count) {
    if (count != 1) return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
    Taken& mine = taken();
    if (mine.first == nullptr) mine.first = returned().exchange(nullptr, std::memory_order_acquire);
    if (mine.first == nullptr) return static_cast<T*>(::operator new(kBytes, kAlignment));
    Block* const block = mine.first;
    mine.first = block->next;
    return reinterpret_cast<T*>(block);
  }
  void deallocate(T* object, std::size_t count) {
    if (count != 1) return ::operator delete(object, kAlignment);
    auto* const block = new (object) Block;
    std::atomic<Block*>& head = returned();
    block->next = head.load(std::memory_order_relaxed);
    while (!head.compare_exchange_weak(block->next, block, std::memory_order_release,
                                       std::memory_order_relaxed)) {
    }
  }
  template <typename Other>
  bool operator==(const RecyclingAllocator<Other>& /*other*/) const {
    return true;
  }

 private:
  struct Block {
    Block* next = nullptr;
  };
  // The returned memory that this thread has taken.
  struct Taken {
    ~Taken() {
      while (first != nullptr) {
        Block* const block = first;
        first = block->next;
        ::operator delete(block, kAlignment);
      }
    }
    Block* first = nullptr;
  };
  static constexpr std::size_t kBytes = sizeof(T) < sizeof(Block) ? sizeof(Block) : sizeof(T);
  static constexpr std::align_val_t kAlignment{alignof(T) < alignof(Block) ? alignof(Block)
                                                                           : alignof(T)};
  static Taken& taken() {
    thread_local Taken blocks;
    return blocks;
  }
  static std::atomic<Block*>& returned() {
    static std::atomic<Block*> head{nullptr};
    return head;
  }
};

}  // namespace peerlane
