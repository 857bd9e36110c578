// SPDX-License-Identifier: Apache-2.0
//
// Stream sockets, IP and Unix: listen, connect, accept, and transfers that never block. Not a
// connection: no buffers, no framing. Every function may be called by any thread; one socket needs
// external synchronization per direction. Every socket made here is non-blocking and close-on-exec.
//
// Codes shared by the transfers: kTryAgain when the call would block (nothing was moved, nothing is
// allocated); kPeerLost when the other end is closed or reset; kPeerSilent when the kernel gave up
// waiting; kUnavailable when the kernel has no memory for it now, or too many descriptors are under
// way (nothing was moved; the socket may be ready all the same, so wait a little).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"
#include "peerlane/os/io_slice.h"
#include "peerlane/os/socket_address.h"

namespace peerlane {

// Connections that a listener's queue may hold: as many as the system allows (its own limit is
// lower where /proc/sys/net/core/somaxconn is).
inline constexpr int kListenBacklog = 4096;

// Binds and listens; localAddress tells the port when it was 0. A Unix path that is a socket
// without a listener is replaced; any other existing file is kept, and the call fails. Errors:
// kUnavailable (in use; an IP that this host does not have), kPermissionDenied, kInvalidArgument.
// Of an IP address they say what could be taken instead. The path stays when the descriptor closes.
Result<Fd> listenOn(const SocketAddress& address, int backlog = kListenBacklog);
// Listens on the first free port of lowPort..highPort (both included) at the IP of `address`; its
// own port is ignored. Errors: kUnavailable naming the range; else as listenOn().
Result<Fd> listenInRange(const SocketAddress& address, uint16_t lowPort, uint16_t highPort,
                         int backlog = kListenBacklog);
// Whether files of a file system of this type (statfs) are those of one kernel alone, so that this
// kernel knows every process that has one of its sockets. False for those that hosts may share, and
// for unknown ones.
bool isOfOneKernel(long fileSystem);
// Deletes the files of Unix sockets in `folder` whose names begin with `prefix`, which belong to
// this user and which no process has open: those of processes that were killed. None where other
// hosts may share the folder, as only they know their processes. `fileSystem`: of `folder`, which
// is asked for where it is not given.
void removeStaleSockets(const std::string& folder, const std::string& prefix,
                        std::optional<long> fileSystem = {});

Result<SocketAddress> localAddress(int fd);
Result<SocketAddress> peerAddress(int fd);

// Starts to connect; when the descriptor is writable, connectResult tells the outcome. Errors:
// kUnavailable (no process listens there), kPermissionDenied, kTryAgain (the Unix listener's queue
// is full).
Result<Fd> connectStart(const SocketAddress& address);
// kTryAgain while connecting; OK once connected; else the reason (kUnavailable, kPeerSilent, ...).
Status connectResult(int fd);
// One connection from a listener's queue; kTryAgain when there is none.
Result<Fd> acceptOne(int listener);

// Sends small segments at once. Nothing for Unix sockets.
Status setNoDelay(int fd);

// Bytes of a stream that were sent and that the other kernel (of a Unix socket: the reader) has not
// taken yet; 0 when that cannot be told.
size_t bytesOnTheWay(int fd);

// A TCP connection as the kernel sees it: does the other host take what this side sent, and does it
// answer at all?
struct TcpFlow {
  uint64_t taken = 0;       // bytes that the other host has acknowledged
  bool isWaiting = false;   // others were handed to this socket
  uint32_t unanswered = 0;  // segments that were repeated, or probes, since the last answer
  std::chrono::milliseconds sinceAnswer{};  // since anything was acknowledged, probes included
};

// Errors: kNotSupported (no TCP socket, or a kernel before Linux 4.6), kSystem.
Result<TcpFlow> tcpFlow(int fd);

// Asks an idle connection's other host for a sign of life, so that one that is gone is noticed
// within about `limit` (to the second, 4 s at least), and so that devices on the way remember the
// connection.
Status setKeepAlive(int fd, std::chrono::nanoseconds limit);

// Sends a prefix of `bytes`. Returns how many went out, at least 1 unless `bytes` is empty.
Result<size_t> sendSome(int fd, std::span<const std::byte> bytes);
// Receives up to `space`. Returns the count; 0 is the orderly end of the stream.
Result<size_t> recvSome(int fd, std::span<std::byte> space);
// The same over several slices, in order. At most kMaxIoSlices, else kInvalidArgument. kRevoked:
// memory of one of them cannot be reached; nothing was taken from or added to the stream.
Result<size_t> sendVec(int fd, std::span<const IoSlice> slices);
Result<size_t> recvVec(int fd, std::span<const IoSlice> slices);

// Two connected Unix stream sockets.
Result<std::pair<Fd, Fd>> socketPair();

}  // namespace peerlane
