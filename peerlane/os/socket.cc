// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/socket.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <string>

#include "peerlane/os/network_interfaces.h"
#include "peerlane/os/transfer_status.h"

namespace peerlane {
namespace {

static_assert(sizeof(IoSlice) == sizeof(iovec));
static_assert(offsetof(IoSlice, base) == offsetof(iovec, iov_base));
static_assert(offsetof(IoSlice, bytes) == offsetof(iovec, iov_len));

// TCP_INFO as kernels have it since Linux 4.6. <linux/tcp.h> has it, too, but cannot be included
// beside <netinet/tcp.h>.
struct TcpInfo {
  tcp_info first;
  uint64_t pacingRate;
  uint64_t maxPacingRate;
  uint64_t bytesAcked;
  uint64_t bytesReceived;
  uint32_t segmentsOut;
  uint32_t segmentsIn;
  uint32_t notSentBytes;
};
static_assert(offsetof(TcpInfo, bytesAcked) == 120 && offsetof(TcpInfo, notSentBytes) == 144);

// Makes a socket that forked children must not hold.
template <typename Make>
Fd makeKept(const Make& make) {
  const NoFork none;
  Fd fd(make());
  if (fd) keepFromChildren(fd.get());
  return fd;
}

Result<Fd> makeSocket(const SocketAddress& address) {
  if (address.family() == SocketAddress::Family::kNone) {
    return Status(Code::kInvalidArgument, "the socket address is empty");
  }
  int domain = address.raw()->sa_family;
  Fd fd = makeKept([&] { return ::socket(domain, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd) return internal::descriptorError(errno, "socket for " + address.toString());
  return fd;
}

// The status for an errno that concerns an address.
Status addressStatus(int error, const std::string& what) {
  Status plain = Status::system(error, what);
  std::string text(plain.message());
  switch (error) {
    case EADDRINUSE:
    case EADDRNOTAVAIL:
    case ECONNREFUSED:
    case ENOENT:
    case ENETUNREACH:
    case EHOSTUNREACH:
    case ECONNRESET: return Status(Code::kUnavailable, text);
    case EACCES:
    case EPERM: return Status(Code::kPermissionDenied, text);
    case ETIMEDOUT: return Status(Code::kPeerSilent, text);
    default: return plain;
  }
}

// What could be bound to instead, for the errors of an IP address that have another one as a cure.
std::string acceptedInstead(int error) {
  switch (error) {
    case EADDRNOTAVAIL: {
      const auto interfaces = listInterfaces();
      return interfaces.isOk() ? "; this host has: " + interfacesInWords(*interfaces) : "";
    }
    case EADDRINUSE: return "; accepted: another port, or 0 for any free one";
    case EACCES:
      return "; accepted: a port that needs no privilege (from 1024 on, or as "
             "/proc/sys/net/ipv4/ip_unprivileged_port_start says), or 0 for any free one";
    default: return "";
  }
}

// `error`: becomes the errno.
Status bindAndListen(int fd, const SocketAddress& address, int backlog, int& error) {
  const auto refused = [&](const char* call) {
    error = errno;
    Status plain = addressStatus(error, call + address.toString());
    if (!address.isIp()) return plain;
    return Status(plain.code(), std::string(plain.message()) + acceptedInstead(error));
  };
  if (::bind(fd, address.raw(), static_cast<socklen_t>(address.rawBytes())) < 0)
    return refused("bind to ");
  if (::listen(fd, backlog) < 0) return refused("listen on ");
  return Status::ok();
}

// Removes the socket file at `address` when no process listens on it; refuses everything else.
Status removeStaleSocket(const SocketAddress& address) {
  std::string path = address.unixName();
  struct stat found {};
  if (::lstat(path.c_str(), &found) < 0) {
    return errno == ENOENT ? Status::ok() : addressStatus(errno, "look at " + path);
  }
  if (!S_ISSOCK(found.st_mode)) {
    return Status(Code::kInvalidArgument, "cannot listen on " + address.toString() +
                                              ": the file exists and is not a socket; it is kept");
  }
  PEERLANE_ASSIGN(Fd probe, makeSocket(address));
  int rc = ::connect(probe.get(), address.raw(), static_cast<socklen_t>(address.rawBytes()));
  if (rc == 0 || errno != ECONNREFUSED) {
    return Status(Code::kUnavailable,
                  "cannot listen on " + address.toString() + ": another process listens there");
  }
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) {
    return addressStatus(errno, "remove the stale socket " + path);
  }
  return Status::ok();
}

Status listenOnPath(int fd, const SocketAddress& address, int backlog, int& error) {
  Status first = bindAndListen(fd, address, backlog, error);
  if (first.isOk() || first.code() != Code::kUnavailable) return first;
  // Two processes that find the same stale file must not delete each other's fresh one. A lock on
  // the directory leaves no file to clean up. A stranger that holds it only delays the replacement.
  std::string path = address.unixName();
  size_t slash = path.rfind('/');
  std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  Fd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock) return addressStatus(errno, "open the folder " + folder);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    return Status(Code::kUnavailable, "cannot replace " + address.toString() +
                                          ": another process holds the lock of its folder");
  }
  PEERLANE_RETURN_IF_ERROR(removeStaleSocket(address));
  return bindAndListen(fd, address, backlog, error);
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);

Result<SocketAddress> askName(int fd, NameCall call, const char* what) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof storage;
  auto* raw = reinterpret_cast<sockaddr*>(&storage);
  if (call(fd, raw, &bytes) < 0) {
    if (errno == ENOTCONN) return Status(Code::kPeerLost, std::string(what) + ": not connected");
    return Status::system(errno, what);
  }
  return SocketAddress::fromRaw(raw, bytes);
}

Status checkSliceCount(size_t count) {
  if (count <= kMaxIoSlices) return Status::ok();
  return Status(Code::kInvalidArgument, std::to_string(count) + " slices in one call; at most " +
                                            std::to_string(kMaxIoSlices) + " are accepted");
}

}  // namespace

namespace internal {

Status transferStatus(int error, const char* what) {
  // Back-pressure happens all the time: one shared record instead of an allocation per call.
  // Never destroyed: a progress thread may still run while the process exits.
  static const auto* const wouldBlock = new Status(Code::kTryAgain, "the socket would block");
  if (error == EAGAIN || error == EWOULDBLOCK) return *wouldBlock;
  Status plain = Status::system(error, what);
  std::string text(plain.message());
  switch (error) {
    case EPIPE:
    case ECONNRESET:
    case ENOTCONN:
    case ECONNABORTED: return Status(Code::kPeerLost, text);
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH: return Status(Code::kPeerSilent, text);
    case EFAULT: return Status(Code::kRevoked, text);  // memory that the call was given
    case ENOBUFS:
    case ENOMEM:
    case ETOOMANYREFS: return Status(Code::kUnavailable, text);
    default: return plain;
  }
}

}  // namespace internal

namespace {

// `error`: the errno of a call that refused this address.
Result<Fd> tryToListen(const SocketAddress& address, int backlog, int& error) {
  PEERLANE_ASSIGN(Fd fd, makeSocket(address));
  if (address.isIp()) {
    int on = 1;
    if (::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0) {
      return Status::system(errno, "SO_REUSEADDR");
    }
  }
  bool isPath = address.family() == SocketAddress::Family::kUnixPath;
  PEERLANE_RETURN_IF_ERROR(isPath ? listenOnPath(fd.get(), address, backlog, error)
                                  : bindAndListen(fd.get(), address, backlog, error));
  return fd;
}

}  // namespace

Result<Fd> listenOn(const SocketAddress& address, int backlog) {
  int error = 0;
  return tryToListen(address, backlog, error);
}

Result<Fd> listenInRange(const SocketAddress& address, uint16_t lowPort, uint16_t highPort,
                         int backlog) {
  std::string range = std::to_string(lowPort) + "-" + std::to_string(highPort);
  if (!address.isIp() || lowPort == 0 || lowPort > highPort) {
    return Status(Code::kInvalidArgument, "cannot listen on " + address.toString() +
                                              " in the port range " + range +
                                              ": needs an IP address and 1 <= low <= high");
  }
  for (uint32_t port = lowPort; port <= highPort; ++port) {
    int error = 0;
    auto fd = tryToListen(address.withPort(static_cast<uint16_t>(port)), backlog, error);
    // Anything else would be the same at each port.
    if (fd.isOk() || (error != EADDRINUSE && error != EACCES && error != EPERM)) return fd;
    if (port == highPort) {
      return fd.status().withContext("no port of the range " + range + " is free at " +
                                     address.ip());
    }
  }
  return Status(Code::kInternal, "unreachable: the port range " + range + " was empty");
}

bool isOfOneKernel(long fileSystem) {
  constexpr std::array<long, 9> kKnown{
      TMPFS_MAGIC,           RAMFS_MAGIC,          EXT4_SUPER_MAGIC,
      0x58465342 /* XFS */,  BTRFS_SUPER_MAGIC,    F2FS_SUPER_MAGIC,
      OVERLAYFS_SUPER_MAGIC, 0x2fc12fc1 /* ZFS */, 0xca451a4e /* bcachefs */};
  return std::find(kKnown.begin(), kKnown.end(), fileSystem) != kKnown.end();
}

void removeStaleSockets(const std::string& folder, const std::string& prefix,
                        std::optional<long> fileSystem) {
  if (!fileSystem) {
    struct statfs of {};
    if (::statfs(folder.c_str(), &of) != 0) return;
    fileSystem = static_cast<long>(of.f_type);
  }
  if (!isOfOneKernel(*fileSystem)) return;
  // One that is being made has its file before it has its owner.
  constexpr time_t kYoungSeconds = 10;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    const std::string path = entry.path().string();
    struct stat found {};
    if (::lstat(path.c_str(), &found) < 0 || !S_ISSOCK(found.st_mode) ||
        found.st_uid != ::geteuid() || ::time(nullptr) - found.st_mtime < kYoungSeconds)
      continue;
    const auto address = SocketAddress::parse("unix:" + path);
    if (!address.isOk()) continue;
    // Connects a datagram socket to it: its owner listens for streams and does not notice, and the
    // kernel says whether there is an owner.
    const Fd probe(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (probe &&
        ::connect(probe.get(), address->raw(), static_cast<socklen_t>(address->rawBytes())) < 0 &&
        errno == ECONNREFUSED)
      ::unlink(path.c_str());
  }
}

Result<SocketAddress> localAddress(int fd) {
  return askName(
      fd, [](int s, sockaddr* a, socklen_t* n) { return ::getsockname(s, a, n); }, "getsockname");
}

Result<SocketAddress> peerAddress(int fd) {
  return askName(
      fd, [](int s, sockaddr* a, socklen_t* n) { return ::getpeername(s, a, n); }, "getpeername");
}

Result<Fd> connectStart(const SocketAddress& address) {
  PEERLANE_ASSIGN(Fd fd, makeSocket(address));
  int rc = ::connect(fd.get(), address.raw(), static_cast<socklen_t>(address.rawBytes()));
  if (rc == 0 || errno == EINPROGRESS || errno == EINTR) return fd;
  if (errno == EAGAIN) {
    return Status(Code::kTryAgain, "the queue of the listener " + address.toString() + " is full");
  }
  return addressStatus(errno, "connect to " + address.toString());
}

Status connectResult(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  int rc = ::poll(&entry, 1, 0);
  if (rc < 0 && errno != EINTR) return Status::system(errno, "poll of a connecting socket");
  if (rc <= 0) return Status(Code::kTryAgain, "the connection is not established yet");
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0) {
    return Status::system(errno, "SO_ERROR");
  }
  if (error != 0) return addressStatus(error, "connect");
  return Status::ok();
}

Result<Fd> acceptOne(int listener) {
  while (true) {
    Fd fd = makeKept(
        [&] { return ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    if (fd) return fd;
    // A connection that was aborted in the queue is not the listener's failure: take the next one.
    if (errno == EINTR || errno == ECONNABORTED) continue;
    if (errno == EMFILE || errno == ENFILE) return internal::descriptorError(errno, "accept");
    return internal::transferStatus(errno, "accept");
  }
}

Status setNoDelay(int fd) {
  int on = 1;
  if (::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0 && errno != EOPNOTSUPP &&
      errno != ENOPROTOOPT) {
    return Status::system(errno, "TCP_NODELAY");
  }
  return Status::ok();
}

size_t bytesOnTheWay(int fd) {
  int bytes = 0;
  return ::ioctl(fd, SIOCOUTQ, &bytes) == 0 ? static_cast<size_t>(std::max(bytes, 0)) : 0;
}

Result<TcpFlow> tcpFlow(int fd) {
  TcpInfo info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOPROTOOPT)
      return Status(Code::kNotSupported, "TCP_INFO: not a TCP socket");
    return Status::system(errno, "TCP_INFO");
  }
  if (bytes < offsetof(TcpInfo, notSentBytes) + sizeof info.notSentBytes)
    return Status(Code::kNotSupported, "TCP_INFO of this kernel lacks tcpi_notsent_bytes");
  TcpFlow flow;
  flow.taken = info.bytesAcked;
  flow.isWaiting = info.first.tcpi_unacked != 0 || info.notSentBytes != 0;
  flow.unanswered = std::max(info.first.tcpi_retransmits, info.first.tcpi_probes);
  flow.sinceAnswer = std::chrono::milliseconds(info.first.tcpi_last_ack_recv);
  return flow;
}

// Half of the limit without a word, then three questions in the other half.
Status setKeepAlive(int fd, std::chrono::nanoseconds limit) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit).count();
  const auto within = [](int64_t value) {
    return static_cast<int>(std::clamp<int64_t>(value, 1, 32767));  // the kernel's own bounds
  };
  struct Option {
    int level;
    int name;
    int value;
  };
  const Option options[] = {{IPPROTO_TCP, TCP_KEEPIDLE, within(seconds / 2)},
                            {IPPROTO_TCP, TCP_KEEPINTVL, within(seconds / 6)},
                            {IPPROTO_TCP, TCP_KEEPCNT, 3},
                            {SOL_SOCKET, SO_KEEPALIVE, 1}};
  for (const Option& option : options)
    if (::setsockopt(fd, option.level, option.name, &option.value, sizeof option.value) != 0 &&
        errno != EOPNOTSUPP && errno != ENOPROTOOPT)
      return Status::system(errno, "keep-alive of a TCP socket");
  return Status::ok();
}

Result<size_t> sendSome(int fd, std::span<const std::byte> bytes) {
  ssize_t sent;
  do {
    sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return internal::transferStatus(errno, "send");
  return static_cast<size_t>(sent);
}

Result<size_t> recvSome(int fd, std::span<std::byte> space) {
  ssize_t got;
  do {
    got = ::recv(fd, space.data(), space.size(), MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return internal::transferStatus(errno, "receive");
  return static_cast<size_t>(got);
}

Result<size_t> sendVec(int fd, std::span<const IoSlice> slices) {
  PEERLANE_RETURN_IF_ERROR(checkSliceCount(slices.size()));
  msghdr message{};
  // The kernel only reads the list; msghdr serves both directions and so has no const.
  message.msg_iov = const_cast<iovec*>(reinterpret_cast<const iovec*>(slices.data()));
  message.msg_iovlen = slices.size();
  ssize_t sent;
  do {
    sent = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return internal::transferStatus(errno, "send");
  return static_cast<size_t>(sent);
}

Result<size_t> recvVec(int fd, std::span<const IoSlice> slices) {
  PEERLANE_RETURN_IF_ERROR(checkSliceCount(slices.size()));
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(reinterpret_cast<const iovec*>(slices.data()));
  message.msg_iovlen = slices.size();
  ssize_t got;
  do {
    got = ::recvmsg(fd, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return internal::transferStatus(errno, "receive");
  return static_cast<size_t>(got);
}

Result<std::pair<Fd, Fd>> socketPair() {
  int fds[2];
  const NoFork none;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) < 0) {
    return internal::descriptorError(errno, "socketpair");
  }
  for (const int fd : fds) keepFromChildren(fd);
  return std::pair<Fd, Fd>(Fd(fds[0]), Fd(fds[1]));
}

}  // namespace peerlane
