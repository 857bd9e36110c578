// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/nofault_copy.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>

#include "peerlane/core/mutex.h"
#include "peerlane/os/mappings/page_pipe.h"
#include "peerlane/os/process.h"

namespace peerlane {
namespace {

// Of a list that is copied in several calls.
constexpr size_t kSlicesAtOnce = 64;

// The end of the page in which this byte lies: what faults is a page.
size_t toPageEnd(const void* at) {
  constexpr size_t kLeastPage = 4096;
  return kLeastPage - reinterpret_cast<uintptr_t>(at) % kLeastPage;
}

// A pipe through which this process sends bytes to itself. A forked child makes one of its own, for
// it has not got its parent's. Thread-safe.
class CopyPipe {
 public:
  explicit CopyPipe(PagePipe pipe) : pipe_(std::move(pipe)) {}
  bool isOfThisProcess() const { return generation_ == forkGeneration(); }
  // Keeps its parent's reachable: it is not freed, because a thread that the child does not have
  // may have locked it.
  void remember(const CopyPipe* before) { before_ = before; }

  // As nofaultRead() and nofaultWrite().
  size_t copy(std::span<const IoSlice> to, std::span<const IoSlice> from) {
    const MutexLock lock(mutex_);
    return copyLocked(to, from);
  }
  // The same; nothing where another thread has the pipe.
  std::optional<size_t> tryCopy(std::span<const IoSlice> to, std::span<const IoSlice> from) {
    if (!mutex_.tryLock()) return std::nullopt;
    const size_t copied = copyLocked(to, from);
    mutex_.unlock();
    return copied;
  }

 private:
  // About what a pipe holds, as the system makes it.
  static constexpr size_t kAtOnce = 64 * 1024;

  size_t copyLocked(std::span<const IoSlice> to, std::span<const IoSlice> from)
      PEERLANE_REQUIRES(mutex_) {
    SliceCursor target(to);
    SliceCursor source(from);
    for (size_t moved = 0;;) {
      std::array<IoSlice, kSlicesAtOnce> room;
      size_t bytes = 0;
      const auto sources = source.next(kAtOnce, room, bytes);
      if (bytes == 0) return moved;
      const Result<size_t> in = pipe_.put(sources);
      if (!in) {
        // Before Linux 6.14 a call that fails leaves a place of the pipe taken, until it is read.
        pipe_.source().drop(1);
        return moved;
      }
      const size_t out = takeOut(target, *in);
      moved += out;
      if (out < *in || out == 0) return moved;
      source.advance(out);
    }
  }
  // Returns how many of `bytes` found their place. The pipe is empty afterwards.
  size_t takeOut(SliceCursor& target, size_t bytes) PEERLANE_REQUIRES(mutex_) {
    for (size_t taken = 0;;) {
      std::array<IoSlice, kSlicesAtOnce> room;
      size_t wanted = 0;
      const auto targets = target.next(bytes - taken, room, wanted);
      Result<size_t> out = pipe_.source().take(targets, wanted);
      // It does not say how far the good memory goes.
      if (!out) out = pipe_.source().take(targets, std::min(wanted, toPageEnd(targets[0].base)));
      if (!out || *out == 0) {
        pipe_.source().drop(bytes - taken);
        return taken;
      }
      taken += *out;
      target.advance(*out);
    }
  }

  const uint64_t generation_ = forkGeneration();
  const CopyPipe* before_ = nullptr;
  Mutex mutex_;
  PagePipe pipe_ PEERLANE_GUARDED_BY(mutex_);
};

// Properties of the process, hence global; never freed, for threads may copy until it has ended.
// Several, because threads of several contexts copy at once.
std::array<std::atomic<CopyPipe*>, 4> copy_pipes{};

Result<CopyPipe*> copyPipe(size_t which) {
  std::atomic<CopyPipe*>& place = copy_pipes[which];
  CopyPipe* known = place.load(std::memory_order_acquire);
  if (known != nullptr && known->isOfThisProcess()) return known;
  PEERLANE_ASSIGN(PagePipe pipe, PagePipe::create());
  auto made = std::make_unique<CopyPipe>(std::move(pipe));
  made->remember(known);
  if (!place.compare_exchange_strong(known, made.get(), std::memory_order_acq_rel)) return known;
  return made.release();
}

size_t copy(std::span<const IoSlice> to, std::span<const IoSlice> from) {
  for (size_t i = 0; i < copy_pipes.size(); ++i) {
    const Result<CopyPipe*> pipe = copyPipe(i);
    if (!pipe) break;
    if (const auto copied = (*pipe)->tryCopy(to, from)) return *copied;
  }
  const Result<CopyPipe*> pipe = copyPipe(0);
  return pipe ? (*pipe)->copy(to, from) : 0;
}

}  // namespace

Status prepareNofault() {
  return copyPipe(0).status();
}

size_t nofaultRead(std::span<const IoSlice> to, std::span<const IoSlice> program) {
  return copy(to, program);
}

size_t nofaultRead(std::span<std::byte> to, std::span<const IoSlice> program, size_t skip) {
  SliceCursor source(program, skip);
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
  return copy(program, from);
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
