// SPDX-License-Identifier: Apache-2.0
//
// Memory that Context::allocate made for peers to read: the system keeps them from writing it, not
// their good will.
#include <sys/mman.h>

#include "peerlane/os/shm_segment.h"
#include "peerlane/session/peer/peer_core.h"
#include "tests/session/peer/session_pair.h"

namespace peerlane {
namespace {

constexpr size_t kBytes = 8192;

class ReadOnlyMemory : public testing::Test {
 protected:
  ReadOnlyMemory() {
    a_ = makeContext(withLinks({"shm"}));
    b_ = makeContext(withLinks({"shm"}));
    toB_ = MUST(a_->connect(b_->ticket(), kSoon));
    toA_ = MUST(b_->accept(kSoon));
  }
  RemoteRegion imported(const Region& region) const {
    RemoteRegion remote = MUST(toA_.importRegion(region.share()));
    EXPECT_OK(remote.prepare(kSoon));
    return remote;
  }
  static bool canBeMadeWritable(const RemoteRegion& remote) {
    return ::mprotect(remote.slot()->region->memory.mapped, kBytes, PROT_READ | PROT_WRITE) == 0;
  }
  Region allocate(Access access) const {
    MemoryOptions options;
    options.access = access;
    return MUST(a_->allocate(kBytes, options));
  }

  std::unique_ptr<Context> a_;
  std::unique_ptr<Context> b_;
  Peer toB_;
  Peer toA_;
};

TEST_F(ReadOnlyMemory, CannotBeMappedForWritingByAPeer) {
  const Region region = allocate(Access::kRemoteRead);
  const RemoteRegion remote = imported(region);
  EXPECT_EQ(remote.engine(), "mapped");
  EXPECT_FALSE(canBeMadeWritable(remote));
  EXPECT_EQ(remote.rightsEnforcedBy(), "owner");
  // Its owner writes, and the peer sees it.
  region.data()[17] = std::byte{99};
  EXPECT_EQ(remote.slot()->region->memory.mapped[17], std::byte{99});
  EXPECT_EQ(toA_.route().readOnlyEnforcedBy, "owner");
  EXPECT_NE(toA_.route().toString().find("initiator (owner of memory that Context::allocate"),
            std::string::npos)
      << toA_.route().toString();
}

TEST_F(ReadOnlyMemory, OtherMemoryIsAsWritableAsEver) {
  const RemoteRegion remote = imported(allocate(Access::kRemoteReadWrite));
  EXPECT_TRUE(canBeMadeWritable(remote));
  EXPECT_EQ(remote.rightsEnforcedBy(), "initiator");
  // A memfd of the program's own is its affair: it may want to give it to others.
  const auto own = MUST(SharedSegment::create(kBytes, {}));
  const Region region = MUST(a_->registerRegion(own->data(), kBytes, Access::kRemoteRead));
  EXPECT_FALSE(isSealedAgainstWriters(own->fd()));
  EXPECT_EQ(imported(region).rightsEnforcedBy(), "initiator");
  EXPECT_OK(a_->unregister(region, kSoon));
}

TEST_F(ReadOnlyMemory, IsNotRegisteredForWritingLater) {
  const Region region = allocate(Access::kRemoteRead);
  const auto again = a_->registerRegion(region.data(), kBytes, Access::kRemoteReadWrite);
  EXPECT_EQ(again.status().code(), Code::kPermissionDenied);
  EXPECT_NE(again.status().message().find("allocate it with Access::kRemoteReadWrite"),
            std::string_view::npos)
      << again.status().toString();
}

}  // namespace
}  // namespace peerlane
