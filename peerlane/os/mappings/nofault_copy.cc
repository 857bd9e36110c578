// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/nofault_copy.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>

#include "peerlane/core/mutex.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/process.h"
#include "peerlane/os/transfer_status.h"

#if defined(__SANITIZE_ADDRESS__)
#define PEERLANE_SEES_POISON
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PEERLANE_SEES_POISON
#endif
#endif
#ifdef PEERLANE_SEES_POISON
#include <sanitizer/asan_interface.h>
#endif

namespace peerlane {
namespace {

const iovec* asIovec(const IoSlice* slices) {
  return reinterpret_cast<const iovec*>(slices);
}

size_t bytesOf(std::span<const IoSlice> slices) {
  size_t bytes = 0;
  for (const IoSlice& slice : slices) bytes += slice.bytes;
  return bytes;
}

// Of a list that is copied in several calls.
constexpr size_t kSlicesAtOnce = 64;

// A place in a list of slices.
class Cursor {
 public:
  Cursor(std::span<const IoSlice> slices, size_t done) : slices_(slices) { advance(done); }

  void advance(size_t bytes) {
    done_ += bytes;
    while (!slices_.empty() && done_ >= slices_.front().bytes) {
      done_ -= slices_.front().bytes;
      slices_ = slices_.subspan(1);
    }
  }
  // The next bytes, `most` or less, as slices in `room`; `bytes` has their sum.
  std::span<const IoSlice> next(size_t most, std::span<IoSlice> room, size_t& bytes) const {
    size_t count = 0;
    size_t skip = done_;
    bytes = 0;
    for (const IoSlice& slice : slices_) {
      if (count == room.size() || bytes == most) break;
      const size_t part = std::min(slice.bytes - skip, most - bytes);
      room[count++] = {static_cast<std::byte*>(slice.base) + skip, part};
      bytes += part;
      skip = 0;
    }
    return room.first(count);
  }

 private:
  std::span<const IoSlice> slices_;
  size_t done_ = 0;  // of the first one
};

// A pipe through which this process sends bytes to itself: the system calls touch the memory as the
// program would, and answer EFAULT. A forked child makes one of its own, for its parent still uses
// this one. Thread-safe.
class CopyPipe {
 public:
  // Errors: kUnavailable (no descriptor is left), kSystem.
  static Result<std::unique_ptr<CopyPipe>> create() {
    int ends[2];
    const NoFork none;
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
      return internal::descriptorError(errno, "a pipe to copy through");
    std::unique_ptr<CopyPipe> made(new CopyPipe(Fd(ends[0]), Fd(ends[1])));
    for (const int end : ends) keepFromChildren(end);
    return made;
  }
  bool isOfThisProcess() const { return generation_ == forkGeneration(); }
  // Keeps its parent's reachable: it is not freed, because a thread that the child does not have
  // may have locked it.
  void remember(const CopyPipe* before) { before_ = before; }

  // As nofaultRead() and nofaultWrite(), from byte `done` of both lists on.
  size_t copy(std::span<const IoSlice> to, std::span<const IoSlice> from, size_t done) {
    Cursor target(to, done);
    Cursor source(from, done);
    const MutexLock lock(mutex_);
    for (size_t moved = 0;;) {
      std::array<IoSlice, kSlicesAtOnce> room;
      size_t bytes = 0;
      const auto sources = source.next(kAtOnce, room, bytes);
      if (bytes == 0) return moved;
      ssize_t in = putIn(sources);
      // One call says nothing of the good slices before a bad one.
      if (in <= 0 && sources.size() > 1) in = putIn(sources.first(1));
      if (in <= 0) return moved;
      const size_t out = takeOut(target, static_cast<size_t>(in));
      moved += out;
      if (out < static_cast<size_t>(in)) return moved;
      source.advance(out);
      target.advance(out);
    }
  }

 private:
  // A pipe holds so much, as the system makes it.
  static constexpr size_t kAtOnce = 64 * 1024;

  CopyPipe(Fd out, Fd in) : out_(std::move(out)), in_(std::move(in)) {}

  ssize_t putIn(std::span<const IoSlice> from) PEERLANE_REQUIRES(mutex_) {
    const ssize_t in = ::writev(in_.get(), asIovec(from.data()), static_cast<int>(from.size()));
    // Before Linux 6.14 a write that fails leaves a place of the pipe taken, until it is read.
    if (in <= 0) drop(1);
    return in;
  }
  // Returns how many of `bytes` found their place. The pipe is empty afterwards.
  size_t takeOut(const Cursor& to, size_t bytes) PEERLANE_REQUIRES(mutex_) {
    Cursor target = to;
    for (size_t taken = 0;;) {
      std::array<IoSlice, kSlicesAtOnce> room;
      size_t wanted = 0;
      const auto targets = target.next(bytes - taken, room, wanted);
      const ssize_t out = wanted == 0 ? 0
                                      : ::readv(out_.get(), asIovec(targets.data()),
                                                static_cast<int>(targets.size()));
      if (out <= 0) {
        drop(bytes - taken);
        return taken;
      }
      taken += static_cast<size_t>(out);
      target.advance(static_cast<size_t>(out));
    }
  }
  void drop(size_t bytes) PEERLANE_REQUIRES(mutex_) {
    std::array<std::byte, 4096> nowhere;
    while (bytes != 0) {
      const ssize_t out = ::read(out_.get(), nowhere.data(), std::min(bytes, nowhere.size()));
      if (out <= 0) return;
      bytes -= static_cast<size_t>(out);
    }
  }

  const Fd out_;
  const Fd in_;
  const uint64_t generation_ = forkGeneration();
  const CopyPipe* before_ = nullptr;
  Mutex mutex_;
};

// Properties of the process, hence global; never freed, for threads may copy until it has ended.
std::atomic<CopyPipe*> copy_pipe{nullptr};
enum class Way : uint8_t { kUnknown, kPinned, kPipe };
std::atomic<Way> way{Way::kUnknown};

Result<CopyPipe*> copyPipe() {
  CopyPipe* known = copy_pipe.load(std::memory_order_acquire);
  if (known != nullptr && known->isOfThisProcess()) return known;
  PEERLANE_ASSIGN(std::unique_ptr<CopyPipe> made, CopyPipe::create());
  made->remember(known);
  if (!copy_pipe.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel))
    return known;
  return made.release();
}

// Names this process also where its first thread has ended, which the process's own number then
// does not. Kept, because gettid() is a system call.
pid_t ownThread() {
  thread_local uint64_t generation = 0;
  thread_local pid_t thread = 0;
  if (thread == 0 || generation != forkGeneration()) {
    generation = forkGeneration();
    thread = static_cast<pid_t>(::syscall(SYS_gettid));
  }
  return thread;
}

// Returns -1, with errno, where nothing was copied.
ssize_t pinnedRead(std::span<const IoSlice> to, std::span<const IoSlice> program) {
  return ::process_vm_readv(ownThread(), asIovec(to.data()), to.size(), asIovec(program.data()),
                            program.size(), 0);
}

ssize_t pinnedWrite(std::span<const IoSlice> program, std::span<const IoSlice> from) {
  return ::process_vm_writev(ownThread(), asIovec(from.data()), from.size(),
                             asIovec(program.data()), program.size(), 0);
}

#ifdef PEERLANE_SEES_POISON
// The sanitizer sees no access of the kernel: this makes one where it would have reported it.
void reportPoisoned(std::span<const IoSlice> slices) {
  for (const IoSlice& slice : slices)
    if (auto* const bad =
            static_cast<volatile char*>(__asan_region_is_poisoned(slice.base, slice.bytes)))
      (void)*bad;
}
#else
void reportPoisoned(std::span<const IoSlice>) {}
#endif

// What could not be pinned may be there all the same.
size_t copyRest(std::span<const IoSlice> to, std::span<const IoSlice> from, ssize_t pinned) {
  const size_t done = pinned < 0 ? 0 : static_cast<size_t>(pinned);
  if (done == std::min(bytesOf(to), bytesOf(from))) return done;
  const Result<CopyPipe*> pipe = copyPipe();
  return pipe ? done + (*pipe)->copy(to, from, done) : done;
}

}  // namespace

Status prepareNofault() {
  if (way.load(std::memory_order_acquire) == Way::kPinned) return Status::ok();
  uint64_t from = 1;
  uint64_t to = 0;
  const IoSlice source{&from, sizeof from};
  const IoSlice target{&to, sizeof to};
  const bool canPin = pinnedRead({&target, 1}, {&source, 1}) == sizeof to &&
                      pinnedWrite({&target, 1}, {&source, 1}) == sizeof to;
  if (!canPin) PEERLANE_RETURN_IF_ERROR(copyPipe().status());
  way.store(canPin ? Way::kPinned : Way::kPipe, std::memory_order_release);
  return Status::ok();
}

size_t nofaultRead(std::span<const IoSlice> to, std::span<const IoSlice> program) {
  reportPoisoned(program);
  const bool pins = way.load(std::memory_order_relaxed) == Way::kPinned;
  return copyRest(to, program, pins ? pinnedRead(to, program) : 0);
}

size_t nofaultRead(std::span<std::byte> to, std::span<const IoSlice> program, size_t skip) {
  Cursor source(program, skip);
  for (size_t moved = 0;;) {
    std::array<IoSlice, kSlicesAtOnce> room;
    size_t wanted = 0;
    const auto sources = source.next(to.size() - moved, room, wanted);
    if (wanted == 0) return moved;
    const IoSlice target{to.data() + moved, wanted};
    const size_t bytes = nofaultRead({&target, 1}, sources);
    moved += bytes;
    if (bytes != wanted) return moved;
    source.advance(bytes);
  }
}

size_t nofaultWrite(std::span<const IoSlice> program, std::span<const IoSlice> from) {
  reportPoisoned(program);
  const bool pins = way.load(std::memory_order_relaxed) == Way::kPinned;
  return copyRest(program, from, pins ? pinnedWrite(program, from) : 0);
}

bool isReadable(const std::byte* base, size_t bytes) {
  if (bytes == 0) return true;
  const size_t step = std::max<size_t>(4096, bytes / (kMaxIoSlices - 1) + 1);
  std::array<IoSlice, kMaxIoSlices> looks;
  size_t count = 0;
  for (size_t at = 0; at < bytes - 1; at += step)
    looks[count++] = {const_cast<std::byte*>(base) + at, 1};
  looks[count++] = {const_cast<std::byte*>(base) + bytes - 1, 1};
  std::array<std::byte, kMaxIoSlices> seen;
  const IoSlice to{seen.data(), count};
  return nofaultRead({&to, 1}, std::span(looks).first(count)) == count;
}

}  // namespace peerlane
