// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/fd.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "peerlane/os/transfer_status.h"

namespace peerlane {

Status internal::descriptorError(int error, std::string_view what) {
  Status failed = Status::system(error, what);
  if (error != EMFILE && error != ENFILE) return failed;
  return Status(Code::kUnavailable, std::string(failed.message()) + "; raise `ulimit -n`");
}

void Fd::reset(int fd) {
  int old = std::exchange(fd_, fd);
  if (old < 0 || old == fd) return;
  int savedError = errno;
  // Linux frees the number even when close reports EINTR: closing twice could hit another thread's
  // file.
  ::close(old);
  errno = savedError;
}

Result<Fd> Fd::dup() const {
  return duplicateFd(fd_);
}

Status Fd::setNonBlocking(bool on) const {
  int flags = ::fcntl(fd_, F_GETFL);
  if (flags < 0)
    return Status::system(errno, "fcntl(F_GETFL) of descriptor " + std::to_string(fd_));
  int wanted = on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK;
  if (wanted != flags && ::fcntl(fd_, F_SETFL, wanted) < 0) {
    return Status::system(errno, "fcntl(F_SETFL) of descriptor " + std::to_string(fd_));
  }
  return Status::ok();
}

Result<Fd> duplicateFd(int fd) {
  int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
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

uint64_t drainEventFd(int fd) {
  uint64_t count = 0;
  ssize_t got;
  do {
    got = ::read(fd, &count, sizeof count);
  } while (got < 0 && errno == EINTR);
  return got == static_cast<ssize_t>(sizeof count) ? count : 0;
}

}  // namespace peerlane
