// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/mappings/page_pipe.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <string_view>

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

// A pipe has 16 places, and a slice that is lent takes one for each page: shorter slices are
// copied, many to a place. Mean bytes of a slice.
constexpr size_t kLeastLent = 1024;

// Asked for; where the user has no more, it keeps the 64 KiB that the system gives to each.
constexpr int kPipeBytes = 256 * 1024;

const iovec* asIovec(std::span<const IoSlice> slices) {
  return reinterpret_cast<const iovec*>(slices.data());
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

}  // namespace

Result<PageSource> PageSource::adopt(const Fd& pipe) {
  // Neither look asks a file system of the giver's, which may never answer.
  const std::string path = "/proc/self/fd/" + std::to_string(pipe.get());
  std::array<char, 5> name{};
  if (::fcntl(pipe.get(), F_GETPIPE_SZ) < 0 ||
      ::readlink(path.c_str(), name.data(), name.size()) != ssize_t{name.size()} ||
      std::string_view(name.data(), name.size()) != "pipe:")
    return Status(Code::kCorrupt,
                  "descriptor " + std::to_string(pipe.get()) + " came in the place of a pipe");
  const NoFork none;
  Fd own(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!own) return internal::descriptorError(errno, "open " + path);
  keepFromChildren(own.get());
  return PageSource(std::move(own));
}

Result<size_t> PageSource::take(std::span<const IoSlice> to, size_t most) {
  constexpr size_t kSlicesAtOnce = 72;
  std::array<IoSlice, kSlicesAtOnce> room;
  size_t bytes = 0;
  const std::span<const IoSlice> targets = SliceCursor(to).next(most, room, bytes);
  if (targets.empty()) return size_t{0};
  reportPoisoned(targets);
  ssize_t out = 0;
  do {
    out = ::readv(fd_.get(), asIovec(targets), static_cast<int>(targets.size()));
  } while (out < 0 && errno == EINTR);
  if (out >= 0) return static_cast<size_t>(out);
  if (errno == EAGAIN) return size_t{0};
  if (errno == EFAULT) return Status(Code::kRevoked, "memory to be filled cannot be written");
  return Status::system(errno, "read from a pipe of pages");
}

size_t PageSource::bytes() const {
  int bytes = 0;
  return ::ioctl(fd_.get(), FIONREAD, &bytes) == 0 ? static_cast<size_t>(bytes) : 0;
}

void PageSource::drop(size_t most) {
  std::array<std::byte, 16 * 1024> nowhere;
  while (most != 0) {
    const ssize_t out = ::read(fd_.get(), nowhere.data(), std::min(most, nowhere.size()));
    if (out < 0 && errno == EINTR) continue;
    if (out <= 0) return;
    most -= static_cast<size_t>(out);
  }
}

Result<PagePipe> PagePipe::create() {
  int ends[2];
  const NoFork none;
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
    return internal::descriptorError(errno, "a pipe to copy through");
  for (const int end : ends) keepFromChildren(end);
  // A process of another user that is given the end opens it anew. Nobody else can name it.
  (void)::fchmod(ends[0], S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
  (void)::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
  return PagePipe(Fd(ends[1]), PageSource(Fd(ends[0])));
}

Result<size_t> PagePipe::put(std::span<const IoSlice> program) {
  reportPoisoned(program);
  size_t bytes = 0;
  for (const IoSlice& slice : program) bytes += slice.bytes;
  if (bytes / kLeastLent >= program.size()) {
    const ssize_t lent = ::vmsplice(in_.get(), asIovec(program), program.size(), SPLICE_F_NONBLOCK);
    if (lent > 0) return static_cast<size_t>(lent);
    if (lent < 0 && errno == EAGAIN) return size_t{0};
  }
  // What cannot be lent may be there all the same. One call says nothing of the good slices before
  // a bad one.
  ssize_t in = ::writev(in_.get(), asIovec(program), static_cast<int>(program.size()));
  if (in < 0 && errno == EFAULT && program.size() > 1)
    in = ::writev(in_.get(), asIovec(program), 1);
  if (in >= 0) return static_cast<size_t>(in);
  if (errno == EAGAIN) return size_t{0};
  if (errno == EFAULT) return Status(Code::kRevoked, "memory to be sent cannot be read");
  return Status::system(errno, "write to a pipe of pages");
}

}  // namespace peerlane
