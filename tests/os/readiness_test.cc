// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/readiness.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace peerlane {
namespace {

bool isReadable(int fd) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1;
}

TEST(Readiness, IsReadableWhileItIsSo) {
  Readiness readiness;
  const int fd = readiness.fd().value();
  EXPECT_EQ(readiness.fd().value(), fd);
  EXPECT_FALSE(isReadable(fd));
  for (int i = 0; i < 3; ++i) {
    readiness.set(true);
    readiness.set(true);
    EXPECT_TRUE(isReadable(fd));
    readiness.set(false);
    EXPECT_FALSE(isReadable(fd));
  }
}

TEST(Readiness, WhoAsksLateIsToldAtOnce) {
  Readiness readiness;
  readiness.set(true);
  EXPECT_TRUE(isReadable(readiness.fd().value()));
  Readiness lapsed;
  lapsed.set(true);
  lapsed.set(false);
  EXPECT_FALSE(isReadable(lapsed.fd().value()));
}

}  // namespace
}  // namespace peerlane
