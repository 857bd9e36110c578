// SPDX-License-Identifier: Apache-2.0
// Registration of memory: what is accepted, and how the rest is refused.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/verbs/connected_pairs.h"

namespace peerlane {
namespace {

class RegionTest : public ConnectedTest {
 protected:
  void* map(int protection) {
    void* mapped = mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    return mapped;
  }
  // 0, or the errno of the refusal.
  int tryRegister(void* at, size_t bytes, unsigned access) {
    ibv_mr* made = verbs.reg_mr_iova2(domain, at, bytes, reinterpret_cast<uint64_t>(at), access);
    if (made == nullptr) return errno;
    EXPECT_EQ(verbs.dereg_mr(made), 0);
    return 0;
  }
  // Connected to another one; a page travels in one packet.
  ibv_qp* pairOfWholePages() {
    PathWishes path;
    path.mtu = IBV_MTU_4096;
    ibv_qp* pair = makePair();
    connect(pair, makePair(), path);
    return pair;
  }
  static constexpr size_t kBytes = 16384;
};

TEST_F(RegionTest, MemoryThatIsNotThere) {
  void* const lowest = reinterpret_cast<void*>(4096);  // the kernel maps nothing there
  EXPECT_EQ(tryRegister(lowest, kBytes, IBV_ACCESS_LOCAL_WRITE), EFAULT);
}

TEST_F(RegionTest, ReadOnlyMemoryIsReadOnly) {
  void* at = map(PROT_READ);
  EXPECT_EQ(tryRegister(at, kBytes, IBV_ACCESS_LOCAL_WRITE), EFAULT);
  EXPECT_EQ(tryRegister(at, kBytes, IBV_ACCESS_REMOTE_READ), 0);
  munmap(at, kBytes);
}

TEST_F(RegionTest, RemoteWritingNeedsLocalWriting) {
  EXPECT_EQ(tryRegister(near->at(), kBytes, IBV_ACCESS_REMOTE_WRITE), EINVAL);
}

TEST_F(RegionTest, RelaxedOrderingIsAWish) {
  EXPECT_EQ(tryRegister(near->at(), kBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING),
            0);
}

TEST_F(RegionTest, KindsThatAreNotThere) {
  EXPECT_EQ(tryRegister(near->at(), kBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED),
            EOPNOTSUPP);
  EXPECT_EQ(tryRegister(near->at(), kBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_HUGETLB),
            EOPNOTSUPP);
}

TEST_F(RegionTest, OnDemandTakesWholePagesEverywhere) {
  ibv_device_attr_ex attributes = {};
  ASSERT_EQ(
      verbs_get_ctx(context)->query_device_ex(context, nullptr, &attributes, sizeof attributes), 0);
  ASSERT_NE(attributes.odp_caps.general_caps & IBV_ODP_SUPPORT, 0u);
  ibv_mr* made = verbs.reg_mr(domain, far->at(), kBytes, kAllRights | IBV_ACCESS_ON_DEMAND);
  ASSERT_NE(made, nullptr) << strerror(errno);
  ibv_qp* c = pairOfWholePages();
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8192);
  wish.wr.rdma.rkey = made->rkey;
  EXPECT_EQ(run(c, wish).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(far->at(), near->at(), 8192), 0);
  memset(far->at(), 0, kBytes);
  ibv_send_wr word = request(IBV_WR_RDMA_WRITE, 8, 0, 64);
  word.wr.rdma.rkey = made->rkey;
  EXPECT_EQ(run(c, word).status, IBV_WC_SUCCESS) << "whether it is right or not";
  EXPECT_EQ(memcmp(far->at(device.dropsPageOffset ? 0 : 64), near->at(), 8), 0);
  EXPECT_EQ(*far->word(device.dropsPageOffset ? 64 : 0), 0u);
  EXPECT_EQ(verbs.dereg_mr(made), 0);
}

// A page of the region further on, because rxe looks outside of the region for others.
TEST_F(RegionTest, OnDemandAtAnAddressOfItsOwn) {
  constexpr size_t kPages = 4, kPage = 4096;
  ASSERT_GE(kBytes, kPages * kPage);
  for (size_t i = 0; i < kPages; ++i) memset(near->at(i * kPage), 'a' + static_cast<int>(i), kPage);
  const auto name = reinterpret_cast<uintptr_t>(near->at()) + kPage;
  ibv_mr* made = verbs.reg_mr_iova2(domain, near->at(), kPages * kPage, name,
                                    kAllRights | IBV_ACCESS_ON_DEMAND);
  ASSERT_NE(made, nullptr) << strerror(errno);
  ibv_qp* c = pairOfWholePages();
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, kPage);
  wish.sg_list->addr = name;
  wish.sg_list->lkey = made->lkey;
  EXPECT_EQ(run(c, wish).status, IBV_WC_SUCCESS) << "whether it is right or not";
  EXPECT_EQ(*far->at(), device.ignoresNames ? 'b' : 'a');
  EXPECT_EQ(verbs.dereg_mr(made), 0);
}

TEST_F(RegionTest, TheSameMemoryManyTimes) {
  ibv_mr* one = verbs.reg_mr(domain, near->at(), kBytes, kAllRights);
  ibv_mr* two = verbs.reg_mr(domain, near->at(), kBytes, kAllRights);
  ASSERT_TRUE(one != nullptr && two != nullptr);
  EXPECT_NE(one->rkey, two->rkey);
  EXPECT_EQ(verbs.dereg_mr(one), 0);
  EXPECT_EQ(verbs.dereg_mr(two), 0);
}

TEST_F(RegionTest, PeersMayNameItAsTheyAreTold) {
  constexpr uint64_t kName = 0x10000;
  ibv_mr* made = verbs.reg_mr_iova2(domain, far->at(4096), 4096, kName, kAllRights);
  ASSERT_NE(made, nullptr) << strerror(errno);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 100);
  wish.wr.rdma.remote_addr = kName + 50;
  wish.wr.rdma.rkey = made->rkey;
  EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(far->at(4096 + 50), near->at(), 100), 0);
  EXPECT_EQ(verbs.dereg_mr(made), 0);
}

TEST_F(RegionTest, ADmabufIsRefusedByDevicesWithout) {
  EXPECT_EQ(verbs.reg_dmabuf_mr(domain, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_F(RegionTest, MemoryOfAFileThatIsShared) {
  const int fd = memfd_create("region", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, kBytes), 0);
  auto* at =
      static_cast<uint8_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  ibv_mr* made = verbs.reg_mr(domain, at, kBytes, kAllRights);
  ASSERT_NE(made, nullptr) << strerror(errno);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 5000);
  wish.wr.rdma = {reinterpret_cast<uint64_t>(at) + 1, made->rkey};
  EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS);
  EXPECT_EQ(memcmp(at + 1, near->at(), 5000), 0);
  EXPECT_EQ(verbs.dereg_mr(made), 0);
  munmap(at, kBytes);
  close(fd);
}

}  // namespace
}  // namespace peerlane
