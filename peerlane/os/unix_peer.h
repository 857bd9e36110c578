// SPDX-License-Identifier: Apache-2.0
//
// The two things that only Unix sockets can do: pass descriptors, and tell which process is at the
// other end. Not a connection (see socket.h, whose codes hold here too). One socket needs external
// synchronization.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <vector>

#include "peerlane/core/status.h"
#include "peerlane/os/fd.h"

namespace peerlane {

// The most descriptors one call passes.
inline constexpr size_t kMaxPassedFds = 16;

// Sends a prefix of `bytes` together with duplicates of `fds`, which stay the caller's. Returns how
// many bytes went out; the descriptors travel with the first of them, so the rest is sent without.
// Requires: at least one byte; at most kMaxPassedFds descriptors.
Result<size_t> sendWithFds(int fd, std::span<const std::byte> bytes, std::span<const int> fds);
// Receives up to `space` and appends the descriptors that came along (close-on-exec) to `out`.
// Returns the byte count, 0 at the end of the stream. Where this process has no free descriptor for
// some of them, these are lost, and one empty Fd after the received ones stands for them all.
// Errors: kCorrupt when more came than may be sent; then those that arrived are closed and the
// stream must be given up.
Result<size_t> recvWithFds(int fd, std::span<std::byte> space, std::vector<Fd>& out);

// The process that called connect() or, seen by the client, listen(), as the kernel recorded it at
// that moment.
struct PeerCredentials {
  pid_t pid = 0;  // in this process' pid namespace; 0 when the peer cannot be seen from it
  uid_t uid = 0;
  gid_t gid = 0;
};
Result<PeerCredentials> peerCredentials(int fd);
// OK for this process's user and for administrators, and for every user where this process is an
// administrator's; else kPermissionDenied, naming both users.
Status checkUser(const PeerCredentials& who);

// OK for a Unix socket; kCorrupt for anything else that came in its place.
Status checkUnixSocket(int fd);

// A pidfd of that process: readable once it ended. Without kernel support (6.5) it is opened from
// the recorded pid, and the connection is looked at afterwards, so that a reused pid is noticed
// unless a third process holds the dead one's socket. Errors: kPeerLost (ended), kUnavailable
// (another pid namespace), kNotSupported.
Result<Fd> peerPidFd(int fd);

}  // namespace peerlane
