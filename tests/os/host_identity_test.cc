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
  auto first = HostIdentity::ofThisProcess();
  auto second = HostIdentity::ofThisProcess();
  ASSERT_TRUE(first.isOk());
  ASSERT_TRUE(second.isOk());
  EXPECT_EQ(*first, *second);
  EXPECT_EQ(first->bootId.size(), 36u);
  EXPECT_EQ(first->bootId.find('\n'), std::string::npos);
  EXPECT_NE(first->pidNamespace, 0u);
  EXPECT_NE(first->netNamespace, 0u);
}

TEST(HostIdentity, AnotherBootIsAnotherKernel) {
  HostIdentity here = HostIdentity::ofThisProcess().value();
  HostIdentity there = here;
  there.bootId[0] = there.bootId[0] == 'x' ? 'y' : 'x';
  EXPECT_TRUE(here.sameKernel(here));
  EXPECT_FALSE(here.sameKernel(there));
  EXPECT_NE(here, there);
}

// A new user namespace needs no rights on most systems; where it is forbidden the child says so.
TEST(HostIdentity, NamespaceOfItsOwnIsSeen) {
  HostIdentity before = HostIdentity::ofThisProcess().value();
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWIPC) != 0) ::_exit(2);
    auto after = HostIdentity::ofThisProcess();
    bool good =
        after.isOk() && after->sameKernel(before) && after->ipcNamespace != before.ipcNamespace &&
        after->userNamespace != before.userNamespace && after->netNamespace == before.netNamespace;
    ::_exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_NE(WEXITSTATUS(status), 1);
}

}  // namespace
}  // namespace peerlane
