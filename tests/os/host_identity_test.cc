// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/host_identity.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace peerlane {
namespace {

TEST(HostIdentity, IsStableAndComplete) {
  const std::string id = bootId().value();
  EXPECT_EQ(id, bootId().value());
  EXPECT_EQ(id.size(), 36u);
  EXPECT_EQ(id.find('\n'), std::string::npos);
  for (const char* name : {"pid", "net"}) {
    EXPECT_NE(namespaceInode(name), 0u) << name;
    EXPECT_EQ(namespaceInode(name), namespaceInodeOf(::getpid(), name)) << name;
  }
}

// A new user namespace needs no rights on most systems; where it is forbidden the child says so.
TEST(HostIdentity, NamespaceOfItsOwnIsSeen) {
  const std::string id = bootId().value();
  const uint64_t ipc = namespaceInode("ipc");
  const uint64_t user = namespaceInode("user");
  const uint64_t net = namespaceInode("net");
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWIPC) != 0) ::_exit(2);
    const auto after = bootId();
    const bool good = after.isOk() && *after == id && namespaceInode("ipc") != ipc &&
                      namespaceInode("user") != user && namespaceInode("net") == net;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace peerlane
