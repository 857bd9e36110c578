// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/free_watch.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "peerlane/core/device_code.h"
#include "peerlane/core/mutex.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/mappings/adopted_mapping.h"
#include "peerlane/os/process.h"
#include "peerlane/os/thread.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1  // Linux 5.11
#endif

namespace peerlane {
namespace {

Status refused(int error, const char* call) {
  std::string why(Status::system(error, std::string("userfaultfd, ") + call).message());
  if (error == EPERM || error == ENOSYS || error == EACCES)
    why += "; the kernel has none, or a container's rules withhold it";
  return Status(error == EMFILE || error == ENFILE ? Code::kUnavailable : Code::kNotSupported,
                std::move(why));
}

// One that tells of frees; nothing is watched yet.
Result<Fd> openWatch() {
#if PEERLANE_THREAD_SANITIZER
  // Seen to hang: memory of its runtime is in the same mappings, and is unmapped under locks that
  // each atomic access of the reader may take.
  return Status(Code::kNotSupported, "userfaultfd: not under the thread sanitizer");
#endif
  Fd fd;
  {
    const NoFork noFork;
    fd.reset(
        static_cast<int>(::syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY)));
    // A child that had it would keep threads of this process waiting when it is closed here.
    keepFromChildren(fd.get());
  }
  if (!fd) return refused(errno, "to open one");
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMOVE | UFFD_FEATURE_EVENT_REMAP;
  if (::ioctl(fd.get(), UFFDIO_API, &api) != 0) return refused(errno, "to have events of frees");
  return fd;
}

uffdio_range rangeOf(const MappedRange& mapped) {
  return {reinterpret_cast<uintptr_t>(mapped.base), mapped.bytes};
}

// The kernel counts calls that free watched memory from before they do until their event was read,
// and refuses requests to protect memory meanwhile, before it looks at them: this one is nonsense.
bool isFreeing(int events) {
  uffdio_writeprotect nonsense{};
  nonsense.mode = ~uint64_t{0};
  return ::syscall(SYS_ioctl, events, UFFDIO_WRITEPROTECT, &nonsense) != 0 && errno == EAGAIN;
}

// Signals stay with the threads of the program: what a handler does could free watched memory,
// which the reader must not. Those of a thread's own faults stay with it: blocked, they would end
// the process without a word of the program's handler.
class NoSignals {
 public:
  NoSignals() {
    sigset_t others;
    ::sigfillset(&others);
    for (const int fault : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGSYS})
      ::sigdelset(&others, fault);
    ::pthread_sigmask(SIG_BLOCK, &others, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace

// Where pages were given back inside of mappings that stayed. The kernel sends that event before it
// takes the pages, and nobody can see when it has. The thread that gives them back has nothing to
// wait for in between, so it is believed after a time in which any thread gets a processor.
//
// Of a fixed size, because the reader writes it; too many places become one that holds them all.
class GivenBack {
 public:
  void add(uint64_t from, uint64_t to) {
    const auto now = Clock::now();
    for (size_t i = 0; i < count_; ++i)
      if (from <= places_[i].to && places_[i].from <= to) return places_[i].hold(from, to, now);
    for (size_t i = 0; i < count_; ++i)
      if (!places_[i].counts(now)) return void(places_[i] = {from, to, now});
    if (count_ < places_.size())
      places_[count_++] = {from, to, now};
    else
      places_.back().hold(from, to, now);
  }
  // All of [from, to) was unmapped.
  void forget(uint64_t from, uint64_t to) {
    for (size_t i = 0; i < count_;)
      if (from <= places_[i].from && places_[i].to <= to)
        places_[i] = places_[--count_];
      else
        ++i;
  }
  bool has(uint64_t from, uint64_t to) const {
    const auto now = Clock::now();
    return std::any_of(places_.begin(), places_.begin() + count_, [&](const Place& place) {
      return place.from < to && from < place.to && place.counts(now);
    });
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kDoubt{10};
  struct Place {
    uint64_t from = 0, to = 0;
    Clock::time_point when{};
    void hold(uint64_t begin, uint64_t end, Clock::time_point now) {
      from = std::min(from, begin);
      to = std::max(to, end);
      when = now;
    }
    bool counts(Clock::time_point now) const { return now - when < kDoubt; }
  };
  std::array<Place, 64> places_{};
  size_t count_ = 0;
};

// The reader of this process and the ranges that it watches. Never destroyed: ranges may end while
// the process does. A forked child has one of its own, because the thread is not there and the
// locks may be held for ever.
struct FreeReader {
  static FreeReader& ofProcess();

  // Both with the descriptor and the thread there.
  Status begin(FreeWatch::Range& range);
  void end(FreeWatch::Range& range);
  void awaitFrees() const { const MutexLock lock(listMutex_); }
  void awaitAll() const;

 private:
  Status start() PEERLANE_REQUIRES(rangesMutex_);
  void stopIfIdle() PEERLANE_REQUIRES(rangesMutex_);
  Status arm(const FreeWatch::Range& range) PEERLANE_REQUIRES(rangesMutex_);
  void disarm(const FreeWatch::Range& range) PEERLANE_REQUIRES(rangesMutex_);
  void link(FreeWatch::Range& range);
  void unlink(FreeWatch::Range& range);
  bool wasGivenBack(const FreeWatch::Range& range) const;
  bool isWatched(const MappedRange& mapped) const;
  void run(int events, int stop);
  void takeEvents(int events);
  void take(const uffd_msg& message) PEERLANE_REQUIRES(listMutex_);
  void tell(uint64_t from, uint64_t to) PEERLANE_REQUIRES(listMutex_);

  const uint64_t forks_ = forkGeneration();
  std::atomic<int> known_{-1};  // the descriptor of events_
  // Of the one that begins or ends a range. Held while memory is allocated and freed, and so while
  // the reader is waited for, which never takes it.
  Mutex rangesMutex_;
  Fd events_ PEERLANE_GUARDED_BY(rangesMutex_);
  Fd stop_ PEERLANE_GUARDED_BY(rangesMutex_);
  std::thread thread_ PEERLANE_GUARDED_BY(rangesMutex_);
  // The reader's. Whoever holds it neither allocates nor frees.
  mutable Mutex listMutex_;
  FreeWatch::Range* first_ PEERLANE_GUARDED_BY(listMutex_) = nullptr;
  GivenBack givenBack_ PEERLANE_GUARDED_BY(listMutex_);
};

FreeReader& FreeReader::ofProcess() {
  static std::atomic<FreeReader*> known{nullptr};
  FreeReader* reader = known.load(std::memory_order_acquire);
  while (reader == nullptr || reader->forks_ != forkGeneration()) {
    auto* const fresh = new FreeReader;
    if (known.compare_exchange_strong(reader, fresh, std::memory_order_acq_rel)) {
      // The one of the parent may have been reading when it forked.
      internal::frees_are_read.store(false, std::memory_order_release);
      return *fresh;
    }
    delete fresh;
  }
  return *reader;
}

Status FreeReader::start() {
  if (thread_.joinable()) return Status::ok();
  PEERLANE_ASSIGN(events_, openWatch());
  known_.store(events_.get(), std::memory_order_release);
  PEERLANE_ASSIGN(stop_, makeEventFd());
  const NoSignals noSignals;
  PEERLANE_ASSIGN(thread_, startThread("the watch of freed memory",
                                       [this, events = events_.get(), stop = stop_.get()] {
                                         run(events, stop);
                                       }));
  return Status::ok();
}

// Closing the descriptor lets go of whoever still waits for its event to be read, and of mappings
// that were moved.
void FreeReader::stopIfIdle() {
  {
    const MutexLock lock(listMutex_);
    if (first_ != nullptr) return;
  }
  known_.store(-1, std::memory_order_release);
  if (thread_.joinable()) {
    signalEventFd(stop_.get());
    thread_.join();
    thread_ = {};
    (void)events_.release();  // the thread has closed it
  }
  events_.reset();
  stop_.reset();
}

Status FreeReader::begin(FreeWatch::Range& range) {
  const MutexLock lock(rangesMutex_);
  Status begun = start();
  if (begun.isOk()) {
    // What was freed before its address was the caller's is none of this range.
    awaitAll();
    // First, because memory may be freed as soon as it is armed.
    link(range);
    begun = arm(range);
    if (!begun.isOk()) {
      unlink(range);
      disarm(range);
    }
  }
  if (!begun.isOk()) stopIfIdle();
  return begun;
}

void FreeReader::end(FreeWatch::Range& range) {
  const MutexLock lock(rangesMutex_);
  unlink(range);
  disarm(range);
  stopIfIdle();
}

void FreeReader::awaitAll() const {
  const int events = known_.load(std::memory_order_acquire);
  while (isFreeing(events)) std::this_thread::yield();
  awaitFrees();
}

Status FreeReader::arm(const FreeWatch::Range& range) {
  PEERLANE_ASSIGN(const auto mappings, mappingsOf(range.base_, range.bytes_));
  for (const KnownMapping& mapping : mappings) {
    if (mapping.kind != MappingKind::kPrivateMemory)
      return Status(Code::kNotSupported,
                    std::string("frees of ") + mappingKindName(mapping.kind) +
                        " cannot be watched: a file that shrinks takes pages without a word");
    uffdio_register wanted{};
    wanted.range = rangeOf(mapping.range);
    wanted.mode = UFFDIO_REGISTER_MODE_WP;  // and nothing will ever be protected
    if (::ioctl(events_.get(), UFFDIO_REGISTER, &wanted) == 0) continue;
    if (errno == EBUSY)
      return Status(Code::kNotSupported,
                    "frees of the memory cannot be watched: another userfaultfd of this process "
                    "watches it");
    return refused(errno, "to watch a mapping");
  }
  if (wasGivenBack(range))
    return Status(Code::kUnavailable,
                  "pages in the memory were given back without unmapping it (madvise) in the last "
                  "10 s");
  // What was unmapped before it was armed sent no event.
  return mappingsOf(range.base_, range.bytes_).status();
}

// By mappings as they are now: they may have grown, and part of one that is armed otherwise than
// the rest would be a mapping of its own. Errors do no harm: then there are events that nobody
// needs.
void FreeReader::disarm(const FreeWatch::Range& range) {
  const auto mappings = mappingsWithin(range.base_, range.bytes_);
  if (!mappings) return;
  for (const KnownMapping& mapping : *mappings) {
    if (isWatched(mapping.range)) continue;
    uffdio_range over = rangeOf(mapping.range);
    (void)::ioctl(events_.get(), UFFDIO_UNREGISTER, &over);
  }
}

void FreeReader::link(FreeWatch::Range& range) {
  const MutexLock lock(listMutex_);
  range.next_ = first_;
  if (first_ != nullptr) first_->before_ = &range;
  first_ = &range;
}

void FreeReader::unlink(FreeWatch::Range& range) {
  const MutexLock lock(listMutex_);
  if (range.next_ != nullptr) range.next_->before_ = range.before_;
  (range.before_ != nullptr ? range.before_->next_ : first_) = range.next_;
}

bool FreeReader::wasGivenBack(const FreeWatch::Range& range) const {
  const MutexLock lock(listMutex_);
  const auto from = reinterpret_cast<uintptr_t>(range.base_);
  return givenBack_.has(from, from + range.bytes_);
}

bool FreeReader::isWatched(const MappedRange& mapped) const {
  const MutexLock lock(listMutex_);
  for (const FreeWatch::Range* range = first_; range != nullptr; range = range->next_)
    if (range->overlaps(mapped.base, mapped.base + mapped.bytes)) return true;
  return false;
}

// The reader's thread. From here on nothing allocates, frees, or takes a lock but listMutex_.
void FreeReader::run(int events, int stop) {
  std::array<pollfd, 2> both{{{events, POLLIN, 0}, {stop, POLLIN, 0}}};
  for (;;) {
    if (::poll(both.data(), both.size(), -1) < 0) continue;
    if (both[0].revents != 0) takeEvents(events);
    if (both[1].revents == 0) continue;
    // Before it ends, because a thread that ends gives its own memory back, which may be watched.
    (void)::close(events);
    return;
  }
}

void FreeReader::takeEvents(int events) {
  std::array<uffd_msg, 16> messages;
  const MutexLock lock(listMutex_);
  internal::frees_are_read.store(true, std::memory_order_seq_cst);
  for (;;) {
    const ssize_t got = ::read(events, messages.data(), sizeof messages);
    if (got <= 0) break;
    for (size_t i = 0; i < static_cast<size_t>(got) / sizeof(uffd_msg); ++i) take(messages[i]);
  }
  internal::frees_are_read.store(false, std::memory_order_release);
}

void FreeReader::take(const uffd_msg& message) {
  const auto& [from, to] = message.arg.remove;
  switch (message.event) {
    case UFFD_EVENT_REMAP:
      return tell(message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
    case UFFD_EVENT_UNMAP: givenBack_.forget(from, to); return tell(from, to);
    case UFFD_EVENT_REMOVE: givenBack_.add(from, to); return tell(from, to);
    default: break;
  }
}

void FreeReader::tell(uint64_t from, uint64_t to) {
  for (FreeWatch::Range* range = first_; range != nullptr; range = range->next_) {
    if (range->isFreed_ || !range->overlaps(reinterpret_cast<const std::byte*>(from),
                                            reinterpret_cast<const std::byte*>(to)))
      continue;
    range->isFreed_ = true;
    range->listener_.freed();
    internal::frees_told.fetch_add(1, std::memory_order_release);
  }
}

void internal::awaitFrees() {
  FreeReader::ofProcess().awaitFrees();
}

void FreeWatch::settleAll() {
  FreeReader::ofProcess().awaitAll();
}

FreeWatch::Range::~Range() {
  // The parent's in a forked child: nothing watches there.
  if (reader_ != nullptr && reader_ == &FreeReader::ofProcess()) reader_->end(*this);
}

Status FreeWatch::probe() {
  return openWatch().status();
}

Result<std::unique_ptr<FreeWatch::Range>> FreeWatch::watch(std::byte* base, size_t bytes,
                                                           Listener& listener) {
  FreeReader& reader = FreeReader::ofProcess();
  std::unique_ptr<Range> range(new Range(base, bytes, listener));
  PEERLANE_RETURN_IF_ERROR(reader.begin(*range));
  range->reader_ = &reader;
  return range;
}

}  // namespace peerlane
