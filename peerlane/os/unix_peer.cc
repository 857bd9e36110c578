// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/unix_peer.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "peerlane/os/transfer_status.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5; Debian 12's headers are older than kernels it meets
#endif

namespace peerlane {
namespace {

// Aligned space for one SCM_RIGHTS message of the largest size.
union ControlSpace {
  cmsghdr align;
  char bytes[CMSG_SPACE(kMaxPassedFds * sizeof(int))];
};

// Takes ownership of every descriptor in the control messages of `message`.
std::vector<Fd> takeFds(msghdr& message) {
  std::vector<Fd> fds;
  for (cmsghdr* entry = CMSG_FIRSTHDR(&message); entry != nullptr;
       entry = CMSG_NXTHDR(&message, entry)) {
    if (entry->cmsg_level != SOL_SOCKET || entry->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (entry->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(entry) + i * sizeof(int), sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

Result<Fd> pidFdFromCredentials(int fd) {
  PEERLANE_ASSIGN(PeerCredentials who, peerCredentials(fd));
  if (who.pid == 0) {
    return Status(Code::kUnavailable,
                  "the peer's process is in another pid namespace and cannot be named here");
  }
  Fd pidFd(static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)));
  if (!pidFd) {
    int error = errno;
    std::string what = "pidfd_open of process " + std::to_string(who.pid);
    if (error == ESRCH) return Status(Code::kPeerLost, what + ": it has ended");
    if (error == ENOSYS) return Status(Code::kNotSupported, what + ": needs Linux 5.3");
    return Status::system(error, what);
  }
  // Had the peer ended before pidfd_open, its socket would already be closed here, and the pid
  // could be another process's.
  pollfd entry{fd, POLLRDHUP, 0};
  if (::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
    return Status(Code::kPeerLost,
                  "process " + std::to_string(who.pid) + " closed the connection meanwhile");
  }
  return pidFd;
}

}  // namespace

Result<size_t> sendWithFds(int fd, std::span<const std::byte> bytes, std::span<const int> fds) {
  if (bytes.empty() || fds.size() > kMaxPassedFds) {
    return Status(Code::kInvalidArgument,
                  "passing " + std::to_string(fds.size()) + " descriptors with " +
                      std::to_string(bytes.size()) +
                      " bytes; at most 16 descriptors and at least one byte are accepted");
  }
  iovec slice{const_cast<std::byte*>(bytes.data()), bytes.size()};
  ControlSpace control{};
  msghdr message{};
  message.msg_iov = &slice;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control.bytes;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* entry = CMSG_FIRSTHDR(&message);
    entry->cmsg_level = SOL_SOCKET;
    entry->cmsg_type = SCM_RIGHTS;
    entry->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(entry), fds.data(), fds.size_bytes());
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return internal::transferStatus(errno, "send with descriptors");
  return static_cast<size_t>(sent);
}

Result<size_t> recvWithFds(int fd, std::span<std::byte> space, std::vector<Fd>& out) {
  iovec slice{space.data(), space.size()};
  ControlSpace control{};
  msghdr message{};
  message.msg_iov = &slice;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t got;
  std::vector<Fd> arrived;
  {
    const NoFork none;  // children get no descriptor that a peer has given
    do {
      got = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got >= 0) arrived = takeFds(message);
    for (const Fd& one : arrived) keepFromChildren(one.get());
  }
  if (got < 0) return internal::transferStatus(errno, "receive with descriptors");
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    // Where all the space was used, the peer sent more than it may. Else the kernel had no free
    // number for some: then this process lacks descriptors, and the peer did nothing wrong.
    if (arrived.size() == kMaxPassedFds)
      return Status(Code::kCorrupt, "a message brought more than 16 descriptors");
    arrived.emplace_back();
  }
  for (Fd& one : arrived) out.push_back(std::move(one));
  return static_cast<size_t>(got);
}

Result<PeerCredentials> peerCredentials(int fd) {
  ucred raw{};
  socklen_t bytes = sizeof raw;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &raw, &bytes) < 0) {
    return Status::system(errno, "SO_PEERCRED");
  }
  // Sockets of other families answer, too, but without a process.
  if (raw.uid == static_cast<uid_t>(-1)) {
    return Status(Code::kNotSupported,
                  "the socket does not tell its peer's credentials; a connected Unix socket does");
  }
  return PeerCredentials{raw.pid, raw.uid, raw.gid};
}

Status checkUser(const PeerCredentials& who) {
  const uid_t own = ::geteuid();
  if (who.uid == own || who.uid == 0 || own == 0) return Status::ok();
  return Status(Code::kPermissionDenied,
                "the process at the other end of the Unix socket belongs to user " +
                    std::to_string(who.uid) + ", this one to " + std::to_string(own));
}

Status checkUnixSocket(int fd) {
  int family = 0;
  socklen_t bytes = sizeof family;
  if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &bytes) == 0 && family == AF_UNIX)
    return Status::ok();
  return Status(Code::kCorrupt, "descriptor " + std::to_string(fd) + " is not a Unix socket");
}

Result<Fd> peerPidFd(int fd) {
  PEERLANE_ASSIGN(PeerCredentials who, peerCredentials(fd));
  int raw = -1;
  socklen_t bytes = sizeof raw;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &raw, &bytes) == 0) return Fd(raw);
  switch (errno) {
    case ESRCH: return Status(Code::kPeerLost, "process " + std::to_string(who.pid) + " has ended");
    case ENOPROTOOPT:
    case EINVAL: return pidFdFromCredentials(fd);
    default: return Status::system(errno, "SO_PEERPIDFD of process " + std::to_string(who.pid));
  }
}

}  // namespace peerlane
