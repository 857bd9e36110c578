// SPDX-License-Identifier: Apache-2.0
//
// Posting a prepared plan makes no allocation, takes no lock and does no system call. Counted, not
// believed: this binary replaces malloc and the locks of the C library by ones that count, and
// posts in a thread that the kernel forbids every system call.
#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <numeric>

#include "tests/channel/context_pair.h"

namespace {

struct Counts {
  bool on = false;
  unsigned allocations = 0;
  unsigned locks = 0;
};
constinit thread_local Counts counts;

void countAllocation() {
  if (counts.on) ++counts.allocations;
}
void countLock() {
  if (counts.on) ++counts.locks;
}
template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {
// NOLINTBEGIN(readability-identifier-naming): the C library's names.
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
// NOLINTEND(readability-identifier-naming)

void* malloc(size_t bytes) {
  countAllocation();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  countAllocation();
  return __libc_calloc(count, bytes);
}
void* realloc(void* old, size_t bytes) {
  countAllocation();
  return __libc_realloc(old, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  countAllocation();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  countAllocation();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** out, size_t alignment, size_t bytes) {
  countAllocation();
  *out = __libc_memalign(alignment, bytes);
  return *out == nullptr ? ENOMEM : 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto real = next<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  countLock();
  return real(mutex);
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static const auto real = next<int (*)(pthread_mutex_t*)>("pthread_mutex_trylock");
  countLock();
  return real(mutex);
}
int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static const auto real = next<int (*)(pthread_rwlock_t*)>("pthread_rwlock_rdlock");
  countLock();
  return real(lock);
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static const auto real = next<int (*)(pthread_rwlock_t*)>("pthread_rwlock_wrlock");
  countLock();
  return real(lock);
}
int pthread_spin_lock(pthread_spinlock_t* lock) noexcept {
  static const auto real = next<int (*)(pthread_spinlock_t*)>("pthread_spin_lock");
  countLock();
  return real(lock);
}
}  // extern "C"

namespace peerlane {
namespace {

// What a post costs, with one plan of each kind over one route.
struct Bench {
  explicit Bench(const RouteCase& route)
      : pair(quiet(route)),
        near(*pair.a, kBytes, route.shared, Access::kRemoteReadWrite, 1),
        far(*pair.b, kBytes, route.shared, Access::kRemoteReadWrite, 2),
        remote(far.importedBy(pair.toB)) {
    EXPECT_OK(remote.prepare(kSoon));
    for (uint64_t i = 0; i < 128; ++i)
      blocks.push_back({&near.region(), i * 300, &remote, (127 - i) * 400, 256});
    const Block one{&near.region(), 8, &remote, 16, 8};
    PlanOptions signalled;
    signalled.signal = 3;
    single = MUST(Plan::create(pair.toB, Direction::kPut, {&one, 1}));
    fetch = MUST(Plan::create(pair.toB, Direction::kGet, {&one, 1}));
    many = MUST(Plan::create(pair.toB, Direction::kPut, blocks));
    signal = MUST(Plan::create(pair.toB, Direction::kPut, {&one, 1}, signalled));
    manySignal = MUST(Plan::create(pair.toB, Direction::kPut, blocks, signalled));
    const StridedBlocks apart{.local = &near.region(),
                              .localStride = 100,
                              .remote = &remote,
                              .remoteStride = 200,
                              .blockBytes = 64,
                              .count = 200};
    strided = MUST(Plan::create(pair.toB, Direction::kPut, apart));
    IndexedBlocks pages;
    pages.local = &near.region();
    pages.localCount = kBytes / 64;
    pages.remote = &remote;
    pages.remoteCount = kBytes / 64;
    pages.blockBytes = 64;
    pages.maxBlocksPerPost = 64;
    indexed = MUST(Plan::create(pair.toB, Direction::kPut, pages));
    std::iota(local.begin(), local.end(), 5);
    for (uint32_t i = 0; i < 64; ++i) distant[i] = (i * 37) % 512;
  }
  // Nobody has to be woken: the peer polls for as long as the test lasts.
  static Config quiet(const RouteCase& route) {
    Config config = configFor(route);
    config.spin = std::chrono::minutes(2);
    return config;
  }
  // All of them, once. The number of failures.
  int postAll(uint32_t round) {
    int failed = 0;
    for (Plan* plan : {&single, &fetch, &many, &signal, &manySignal, &strided})
      failed += ended(plan->post());
    for (uint32_t& number : distant) number = (number + round) % 512;
    return failed + ended(indexed.post(local, distant));
  }
  // 0 for success. Where an agent copies, the engine's thread may have been faster to take it.
  static int ended(const Result<Transfer>& posted) {
    if (!posted.isOk()) return 1;
    while (!posted->done()) std::atomic_signal_fence(std::memory_order_seq_cst);
    return 0;
  }

  static constexpr uint64_t kBytes = 64 * 1024;
  ContextPair pair;
  TestMemory near;
  TestMemory far;
  RemoteRegion remote;
  std::vector<Block> blocks;
  Plan single, fetch, many, signal, manySignal, strided, indexed;
  std::array<uint32_t, 64> local{};
  std::array<uint32_t, 64> distant{};
};

class PostingPath : public testing::TestWithParam<RouteCase> {};

// The engines that copy on the calling thread; on others the post hands over.
INSTANTIATE_TEST_SUITE_P(Routes, PostingPath, testing::Values(kSelf, kMapped, kCma), routeName);

TEST_P(PostingPath, AllocatesNothingAndTakesNoLock) {
  Bench bench(GetParam());
  EXPECT_EQ(bench.postAll(1), 0) << "the first of everything";
  counts = {.on = true};
  int failed = 0;
  for (uint32_t i = 0; i < 1000; ++i) failed += bench.postAll(i);
  counts.on = false;
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(counts.allocations, 0u);
  EXPECT_EQ(counts.locks, 0u);
  // The counters count.
  counts = {.on = true};
  ::operator delete(::operator new(1));
  std::mutex mutex;
  { const std::lock_guard lock(mutex); }
  counts.on = false;
  EXPECT_EQ(counts.allocations, 1u);
  EXPECT_EQ(counts.locks, 1u);
}

// From here on this thread may only end the process: anything else is told by SIGSYS.
void forbidSystemCalls() {
  const auto told = [](int, siginfo_t* info, void*) {
    // Not through the C library: exit handlers are none of this thread's business.
    syscall(SYS_exit_group, 100 + (info->si_syscall % 100));
  };
  struct sigaction action {};
  action.sa_sigaction = told;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSYS, &action, nullptr);
  std::array<sock_filter, 4> filter = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  }};
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    _exit(90);
}

// Runs `act` in a process of its own, in a thread without system calls. How that process ended.
int runWithoutSystemCalls(const RouteCase& route, const std::function<int(Bench&)>& act) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    Bench bench(route);
    if (bench.postAll(1) != 0) _exit(91);
    forbidSystemCalls();
    const int failed = act(bench);
    syscall(SYS_exit_group, failed == 0 ? 0 : 92);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

class PostingPathSystemCalls : public PostingPath {};
INSTANTIATE_TEST_SUITE_P(Routes, PostingPathSystemCalls, testing::Values(kSelf, kMapped),
                         routeName);

TEST_P(PostingPathSystemCalls, AreNone) {
  const int status = runWithoutSystemCalls(GetParam(), [](Bench& bench) {
    int failed = 0;
    for (uint32_t i = 0; i < 10'000; ++i) failed += bench.postAll(i);
    return failed;
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
      << "status " << std::hex << status << ": 90..92 set-up, 100 + n: system call n";
}

TEST_P(PostingPathSystemCalls, WouldBeSeen) {
  const int status = runWithoutSystemCalls(GetParam(), [](Bench&) {
    (void)getppid();
    return 0;
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 100 + SYS_getppid % 100)
      << std::hex << status;
}

}  // namespace
}  // namespace peerlane
