// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/fd.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cerrno>
#include <string>

#include "peerlane/os/transfer_status.h"

namespace peerlane {

Status internal::descriptorError(int error, std::string_view what) {
  Status failed = Status::system(error, what);
  if (error != EMFILE && error != ENFILE) return failed;
  return Status(Code::kUnavailable, std::string(failed.message()) + "; raise `ulimit -n`");
}

namespace {

// By descriptor, one bit each: the descriptors that children do not get. Pages of it that no
// descriptor needs are never touched. Changed under the lock that fork() takes, so that a child
// finds bits that are true.
constexpr int kMostKept = 1 << 20;
std::atomic<uint64_t> kept[kMostKept / 64];
std::atomic<int> keptWords{0};  // all bits are in the first so many
pthread_mutex_t forkLock = PTHREAD_MUTEX_INITIALIZER;

std::atomic<uint64_t>& wordOf(int fd) {
  return kept[fd / 64];
}
constexpr uint64_t bitOf(int fd) {
  return uint64_t{1} << (fd % 64);
}
bool isKept(int fd) {
  return fd >= 0 && fd < kMostKept && (wordOf(fd).load(std::memory_order_relaxed) & bitOf(fd)) != 0;
}

// Only calls that are safe in a signal handler. The numbers stay taken, so that code that still
// closes them in the child closes nothing else.
void dropInChild() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int i = 0; i < keptWords.load(std::memory_order_relaxed); ++i)
    for (uint64_t bits = kept[i].exchange(0, std::memory_order_relaxed); bits != 0;
         bits &= bits - 1) {
      const int fd = i * 64 + std::countr_zero(bits);
      if (null >= 0)
        ::dup3(null, fd, O_CLOEXEC);
      else
        ::close(fd);
    }
  if (null >= 0) ::close(null);
  ::pthread_mutex_unlock(&forkLock);
}

const int kForksAreWatched =
    ::pthread_atfork([] { ::pthread_mutex_lock(&forkLock); },
                     [] { ::pthread_mutex_unlock(&forkLock); }, dropInChild);

}  // namespace

NoFork::NoFork() {
  ::pthread_mutex_lock(&forkLock);
}
NoFork::~NoFork() {
  ::pthread_mutex_unlock(&forkLock);
}

void keepFromChildren(int fd) {
  if (fd < 0 || fd >= kMostKept) return;
  wordOf(fd).fetch_or(bitOf(fd), std::memory_order_relaxed);
  int words = keptWords.load(std::memory_order_relaxed);
  while (words <= fd / 64 && !keptWords.compare_exchange_weak(words, fd / 64 + 1)) {
  }
}

int Fd::release() {
  const int fd = std::exchange(fd_, -1);
  if (isKept(fd)) wordOf(fd).fetch_and(~bitOf(fd), std::memory_order_relaxed);
  return fd;
}

void Fd::reset(int fd) {
  int old = std::exchange(fd_, fd);
  if (old < 0 || old == fd) return;
  int savedError = errno;
  if (isKept(old)) {
    const NoFork none;  // in between another thread may get the number
    wordOf(old).fetch_and(~bitOf(old), std::memory_order_relaxed);
    ::close(old);
    errno = savedError;
    return;
  }
  // Linux frees the number even when close reports EINTR: closing twice could hit another thread's
  // file.
  ::close(old);
  errno = savedError;
}

Result<Fd> Fd::dup() const {
  return duplicateFd(fd_);
}

Result<Fd> duplicateFd(int fd) {
  int copy = -1;
  if (isKept(fd)) {
    const NoFork none;
    copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    keepFromChildren(copy);
  } else {
    copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  }
  if (copy >= 0) return Fd(copy);
  return internal::descriptorError(errno, "duplicate descriptor " + std::to_string(fd));
}

Result<Fd> makeEventFd() {
  Fd fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!fd) return internal::descriptorError(errno, "eventfd");
  return fd;
}

void signalEventFd(int fd) {
  const uint64_t one = 1;
  // EAGAIN means the counter is full, which is readable too: nothing is lost.
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

bool knock(int socket) {
  const char byte = 1;
  while (::send(socket, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
    if (errno != EINTR) return errno != ENOBUFS && errno != ENOMEM;
  return true;
}

uint64_t drainEventFd(int fd) {
  uint64_t count = 0;
  ssize_t got;
  do {
    got = ::read(fd, &count, sizeof count);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof count) ? count : 0;
}

}  // namespace peerlane
