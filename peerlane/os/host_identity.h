// SPDX-License-Identifier: Apache-2.0
//
// Which running kernel and which namespaces a process lives in. Two processes that exchange theirs
// know whether they share a machine, can name each other's pids, and see the same abstract sockets.
// Thread: any.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "peerlane/core/status.h"

namespace peerlane {

// Where another process lives, by what it says of itself.
enum class HostRelation : uint8_t {
  kUnknown,       // one of the two could not tell
  kOtherHost,     // another kernel, or this one before its last start
  kOtherNetwork,  // this host, and another network namespace, where no abstract socket leads
  kSameNetwork,
};

// This boot of this kernel: 36 characters, new at every start.
Result<std::string> bootId();
// The inode number of this process's namespace "net", "pid", ...; 0 when the kernel has none.
uint64_t namespaceInode(const std::string& name);
// The same of another process; also 0 where this process may not read it.
uint64_t namespaceInodeOf(pid_t pid, const std::string& name);

}  // namespace peerlane
