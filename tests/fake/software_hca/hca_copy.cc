// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_copy.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

namespace peerlane::softhca {
namespace {

#define HCA_UNSEEN __attribute__((no_sanitize("thread")))

using Word = uint64_t __attribute__((may_alias));

// Larger pieces are data; nobody polls in the middle of them.
constexpr size_t kMostPolled = 64;

template <class Mark>
void forWords(const void* at, size_t bytes, Mark&& mark) {
  if (bytes > kMostPolled) return;
  const auto begin = reinterpret_cast<uintptr_t>(at);
  for (uintptr_t word = begin & ~uintptr_t{3}; word < begin + bytes; word += 4)
    mark(reinterpret_cast<void*>(word));
}

HCA_UNSEEN inline void copyByte(unsigned char* to, const unsigned char* from) {
  __atomic_store_n(to, __atomic_load_n(from, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

}  // namespace

HCA_UNSEEN void copyBytes(void* to, const void* from, size_t bytes) {
  auto* out = static_cast<unsigned char*>(to);
  const auto* in = static_cast<const unsigned char*>(from);
  for (; bytes > 0 && reinterpret_cast<uintptr_t>(out) % sizeof(Word) != 0; --bytes)
    copyByte(out++, in++);
  for (; bytes >= sizeof(Word); bytes -= sizeof(Word), out += sizeof(Word), in += sizeof(Word))
    __atomic_store_n(reinterpret_cast<Word*>(out),
                     __atomic_load_n(reinterpret_cast<const Word*>(in), __ATOMIC_RELAXED),
                     __ATOMIC_RELAXED);
  for (; bytes > 0; --bytes) copyByte(out++, in++);
}

HCA_UNSEEN void placeBytes(void* to, const void* from, size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  forWords(to, bytes, [](void* word) { __tsan_release(word); });
#endif
  __atomic_thread_fence(__ATOMIC_RELEASE);
  copyBytes(to, from, bytes);
}

void seeWords([[maybe_unused]] const void* at, [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_THREAD__)
  forWords(at, bytes, [](void* word) { __tsan_acquire(word); });
#endif
}

HCA_UNSEEN uint64_t fetchAdd(void* at, uint64_t add) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(at);
  __tsan_release(at);
#endif
  return __atomic_fetch_add(static_cast<Word*>(at), add, __ATOMIC_SEQ_CST);
}

HCA_UNSEEN uint64_t compareSwap(void* at, uint64_t compare, uint64_t swap) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(at);
  __tsan_release(at);
#endif
  __atomic_compare_exchange_n(static_cast<Word*>(at), &compare, swap, false, __ATOMIC_SEQ_CST,
                              __ATOMIC_SEQ_CST);
  return compare;
}

namespace {

uintptr_t pageBytes() {
  static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
uintptr_t pageOf(const void* at) {
  return reinterpret_cast<uintptr_t>(at) & ~(pageBytes() - 1);
}

}  // namespace

bool isMapped(const void* at, size_t bytes) {
  std::array<unsigned char, 64> resident;
  const uintptr_t end = reinterpret_cast<uintptr_t>(at) + bytes;
  for (uintptr_t page = pageOf(at); page < end; page += pageBytes())
    if (mincore(reinterpret_cast<void*>(page), pageBytes(), resident.data()) != 0) return false;
  return true;
}

int touchPages(void* at, size_t bytes, bool isWritten) {
  constexpr int kPopulateRead = 22, kPopulateWrite = 23;  // Linux 5.14; not in every header
  const uintptr_t page = pageOf(at);
  const uintptr_t end = reinterpret_cast<uintptr_t>(at) + bytes;
  const uintptr_t whole = (end - page + pageBytes() - 1) & ~(pageBytes() - 1);
  const int advice = isWritten ? kPopulateWrite : kPopulateRead;
  if (madvise(reinterpret_cast<void*>(page), whole, advice) == 0) return 0;
  return EFAULT;
}

}  // namespace peerlane::softhca
