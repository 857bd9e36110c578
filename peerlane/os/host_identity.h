// SPDX-License-Identifier: Apache-2.0
//
// HostIdentity: which running kernel and which namespaces a process lives in. Two processes that
// exchange theirs know whether they share a machine, can name each other's pids, and see the same
// abstract sockets. A value.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "peerlane/core/status.h"

namespace peerlane {

// This boot of this kernel: 36 characters, new at every start.
Result<std::string> bootId();
// The inode number of this process's namespace "net", "pid", ...; 0 when the kernel has none.
uint64_t namespaceInode(const std::string& name);
// The same of another process; also 0 where this process may not read it.
uint64_t namespaceInodeOf(pid_t pid, const std::string& name);

struct HostIdentity {
  std::string bootId;
  // Inode numbers; equal numbers on one boot are the same namespace. 0 when the kernel has none.
  uint64_t pidNamespace = 0;
  uint64_t ipcNamespace = 0;
  uint64_t netNamespace = 0;
  uint64_t userNamespace = 0;

  static Result<HostIdentity> ofThisProcess();

  bool sameKernel(const HostIdentity& other) const { return bootId == other.bootId; }
  friend bool operator==(const HostIdentity&, const HostIdentity&) = default;
};

}  // namespace peerlane
