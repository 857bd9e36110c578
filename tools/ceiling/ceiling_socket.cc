// SPDX-License-Identifier: Apache-2.0
#include "tools/ceiling/ceiling_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace peerlane::bench {
namespace {

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

void withoutDelay(int fd) {
  const int on = 1;
  (void)::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

Result<RawSocket::Listener> RawSocket::listen() {
  Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof(address);
  if (!fd || ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) < 0 ||
      ::listen(fd.get(), 1) < 0 ||
      ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) < 0)
    return Status::system(errno, "listening on the loopback interface");
  return Listener{std::move(fd), ntohs(address.sin_port)};
}

Result<std::unique_ptr<RawSocket>> RawSocket::accept(const Listener& listener) {
  Descriptor fd(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!fd) return Status::system(errno, "accepting on the loopback interface");
  withoutDelay(fd.get());
  return std::unique_ptr<RawSocket>(new RawSocket(std::move(fd)));
}

Result<std::unique_ptr<RawSocket>> RawSocket::connect(uint16_t port) {
  Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(port);
  if (!fd || ::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) < 0)
    return Status::system(errno, "connecting over the loopback interface");
  withoutDelay(fd.get());
  return std::unique_ptr<RawSocket>(new RawSocket(std::move(fd)));
}

Status RawSocket::sendAll(const void* from, uint64_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket_.get(), at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Status::system(errno, "raw socket: send");
    at += sent;
    bytes -= static_cast<uint64_t>(sent);
  }
  return Status::ok();
}

Status RawSocket::receiveAll(void* to, uint64_t bytes) {
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const ssize_t got = ::recv(socket_.get(), at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Status::system(got == 0 ? ECONNRESET : errno, "raw socket: recv");
    at += got;
    bytes -= static_cast<uint64_t>(got);
  }
  return Status::ok();
}

Status RawSocket::greet(bool first) {
  uint64_t word = 0;
  if (first) PEERLANE_RETURN_IF_ERROR(sendAll(&word, sizeof(word)));
  PEERLANE_RETURN_IF_ERROR(receiveAll(&word, sizeof(word)));
  return first ? Status::ok() : sendAll(&word, sizeof(word));
}

Status RawSocket::put(const std::byte* from, uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(sendAll(from, bytes));
  uint64_t confirmed = 0;
  return receiveAll(&confirmed, sizeof(confirmed));
}

Status RawSocket::get(std::byte* to, uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(sendAll(&bytes, sizeof(bytes)));
  return receiveAll(to, bytes);
}

Status RawSocket::exchange(const std::byte* from, std::byte* to, uint64_t bytes) {
  PEERLANE_RETURN_IF_ERROR(sendAll(from, bytes));
  return receiveAll(to, bytes);
}

Status RawSocket::serve(const SocketRequest& request, const std::byte* source,
                        std::byte* destination) {
  for (uint64_t i = 0; i < request.count; ++i) {
    uint64_t word = 0;
    if (request.bothWays) {
      PEERLANE_RETURN_IF_ERROR(receiveAll(destination + i * request.stride, request.bytes));
      PEERLANE_RETURN_IF_ERROR(sendAll(source + i * request.stride, request.bytes));
    } else if (request.isPut) {
      PEERLANE_RETURN_IF_ERROR(receiveAll(destination + i * request.stride, request.bytes));
      PEERLANE_RETURN_IF_ERROR(sendAll(&word, sizeof(word)));
    } else {
      PEERLANE_RETURN_IF_ERROR(receiveAll(&word, sizeof(word)));
      PEERLANE_RETURN_IF_ERROR(sendAll(source + i * request.stride, request.bytes));
    }
  }
  return Status::ok();
}

}  // namespace peerlane::bench
