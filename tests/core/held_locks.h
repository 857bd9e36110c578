// SPDX-License-Identifier: Apache-2.0
//
// What a forked child finds: the locks of its parent as they were at the fork, and no thread that
// could let go of one. In a child made by forkWithLocksHeld() each lock and condition that was used
// before the fork counts as held for ever: a child that asks for one is told where, and has failed.
// Replaces functions of pthread and operator new in the whole program: for one source of a program
// that is not sanitized.
#pragma once

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace peerlane::held_locks {

// Addresses of locks and conditions. Never frees, never grows, takes no lock.
class Addresses {
 public:
  void add(const void* address) { (void)place(address, true); }
  bool has(const void* address) { return place(address, false); }

 private:
  bool place(const void* address, bool adds) {
    for (size_t at = reinterpret_cast<uintptr_t>(address) / 8;; ++at) {
      std::atomic<const void*>& slot = slots_.at(at % kSlots);
      const void* known = slot.load();
      if (known == nullptr && (!adds || slot.compare_exchange_strong(known, address))) return adds;
      if (known == address) return true;
    }
  }
  static constexpr size_t kSlots = size_t{1} << 18;
  std::array<std::atomic<const void*>, kSlots> slots_{};
};

inline Addresses used;         // before the fork
inline Addresses takenByFork;  // by handlers of fork(), which let go of them in the child
// While the program was loaded: the CUDA runtime has one for the list of its kernels, and takes it
// again when the program ends.
inline Addresses ofLoading;
enum class Phase : uint8_t { kLoading, kParent, kChild };
inline Phase phase = Phase::kLoading;
inline thread_local bool isForking = false;

inline void note(const void* lock) {
  (phase == Phase::kLoading ? ofLoading : isForking ? takenByFork : used).add(lock);
}
inline bool isChild() {
  return phase == Phase::kChild;
}
// Memory that the child made itself, in the place of what its parent had freed. One thread.
struct Made {
  std::array<std::pair<uintptr_t, size_t>, 65536> blocks;
  size_t count;
  bool has(const void* address) const {
    const auto at = reinterpret_cast<uintptr_t>(address);
    return std::any_of(blocks.begin(), blocks.begin() + count,
                       [at](const auto& block) { return at - block.first < block.second; });
  }
};
inline Made made{};
inline void* make(size_t bytes) {
  void* const block = std::malloc(bytes);
  if (block == nullptr) std::abort();
  if (isChild() && made.count < made.blocks.size())
    made.blocks.at(made.count++) = {reinterpret_cast<uintptr_t>(block), bytes};
  return block;
}
inline bool isHeld(const void* lock) {
  return isChild() && used.has(lock) && !takenByFork.has(lock) && !ofLoading.has(lock) &&
         !made.has(lock);
}
[[noreturn]] inline void failAt(const char* call) {
  phase = Phase::kParent;
  std::array<void*, 40> frames{};
  dprintf(STDERR_FILENO, "%s of an object of the parent, which may be held for ever:\n", call);
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())),
                       STDERR_FILENO);
  _exit(90);
}

// In a process that has just begun: from now on locks are noted.
inline void noteLocks() {
  phase = Phase::kParent;
}

inline pid_t forkWithLocksHeld() {
  isForking = true;
  const pid_t child = ::fork();
  isForking = false;
  if (child == 0 && phase == Phase::kParent) phase = Phase::kChild;
  return child;
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace peerlane::held_locks

namespace held = peerlane::held_locks;

__attribute__((noinline)) void* operator new(size_t bytes) {
  return held::make(bytes);
}
__attribute__((noinline)) void operator delete(void* block) noexcept {
  std::free(block);
}
__attribute__((noinline)) void operator delete(void* block, size_t /*bytes*/) noexcept {
  std::free(block);
}

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = held::real<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  if (held::isHeld(mutex)) held::failAt("pthread_mutex_lock");
  held::note(mutex);
  return next(mutex);
}
extern "C" int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static const auto next = held::real<int (*)(pthread_mutex_t*)>("pthread_mutex_trylock");
  if (held::isHeld(mutex)) return EBUSY;
  held::note(mutex);
  return next(mutex);
}
extern "C" int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static const auto next = held::real<int (*)(pthread_rwlock_t*)>("pthread_rwlock_wrlock");
  if (held::isHeld(lock)) held::failAt("pthread_rwlock_wrlock");
  held::note(lock);
  return next(lock);
}
extern "C" int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static const auto next = held::real<int (*)(pthread_rwlock_t*)>("pthread_rwlock_rdlock");
  if (held::isHeld(lock)) held::failAt("pthread_rwlock_rdlock");
  held::note(lock);
  return next(lock);
}
extern "C" int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static const auto next =
      held::real<int (*)(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait");
  if (held::isChild()) held::failAt("pthread_cond_wait");
  held::note(condition);
  return next(condition, mutex);
}
extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      clockid_t clock, const timespec* until) {
  static const auto next =
      held::real<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  if (held::isChild()) held::failAt("pthread_cond_clockwait");
  held::note(condition);
  return next(condition, mutex, clock, until);
}
extern "C" int pthread_cond_destroy(pthread_cond_t* condition) noexcept {
  static const auto next = held::real<int (*)(pthread_cond_t*)>("pthread_cond_destroy");
  if (held::isHeld(condition))
    held::failAt("pthread_cond_destroy");  // it waits for the threads that wait
  return next(condition);
}
extern "C" int pthread_join(pthread_t thread, void** result) {
  static const auto next = held::real<int (*)(pthread_t, void**)>("pthread_join");
  if (held::isChild()) held::failAt("pthread_join");
  return next(thread, result);
}
