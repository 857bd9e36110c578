// SPDX-License-Identifier: Apache-2.0
#include "tools/measure/bench_pipe.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace peerlane::bench {
namespace {

constexpr size_t kMaxDescriptors = 4;

struct Header {
  uint32_t kind;
  uint32_t descriptors;
  uint64_t bytes;
};

Status lost() {
  return Status(Code::kPeerLost, "the other process of the benchmark ended");
}

Status sendAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EPIPE ? lost() : Status::system(errno, "bench pipe: send");
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
  return Status::ok();
}

Status receiveAll(int fd, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != ECONNRESET) return Status::system(errno, "bench pipe: recv");
    if (got <= 0) return lost();
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return Status::ok();
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::pair<Descriptor, Descriptor>> BenchPipe::makePair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
    return Status::system(errno, "socketpair for the benchmark");
  return std::pair(Descriptor(ends[0]), Descriptor(ends[1]));
}

Status BenchPipe::send(uint32_t kind, std::span<const std::byte> content,
                       std::span<const int> descriptors) {
  Header header{kind, static_cast<uint32_t>(descriptors.size()), content.size()};
  iovec piece{&header, sizeof(header)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  // A header is far below the socket's buffer: it goes whole or not at all.
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(end_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent != sizeof(header)) return errno == EPIPE ? lost() : Status::system(errno, "bench pipe");
  return sendAll(end_.get(), content);
}

Result<BenchMessage> BenchPipe::receive() {
  Header header{};
  iovec piece{&header, sizeof(header)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = 0;
  do {
    got = ::recvmsg(end_.get(), &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return lost();
  BenchMessage result;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&message); rights != nullptr;
       rights = CMSG_NXTHDR(&message, rights)) {
    if (rights->cmsg_level != SOL_SOCKET || rights->cmsg_type != SCM_RIGHTS) continue;
    for (size_t i = 0; i < (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(rights) + i * sizeof(int), sizeof(int));
      result.descriptors.emplace_back(fd);
    }
  }
  auto rest = std::as_writable_bytes(std::span(&header, 1)).subspan(static_cast<size_t>(got));
  PEERLANE_RETURN_IF_ERROR(receiveAll(end_.get(), rest));
  if (header.descriptors != result.descriptors.size())
    return Status(Code::kInternal, "bench pipe: descriptors went missing");
  result.kind = header.kind;
  result.content.resize(header.bytes);
  PEERLANE_RETURN_IF_ERROR(receiveAll(end_.get(), result.content));
  return result;
}

}  // namespace peerlane::bench
