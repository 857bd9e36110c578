// SPDX-License-Identifier: Apache-2.0
// Errors that are ordered: what a program sees of each.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "tests/verbs/software_controls.h"

namespace peerlane {
namespace {

class SoftwareFaultTest : public SoftwareTest {
 protected:
  void SetUp() override {
    SoftwareTest::SetUp();
    PathWishes path;
    path.timeout = 10;
    path.retries = 2;
    c = makePair();
    d = makePair();
    connect(c, d, path);
  }
  ibv_qp *c = nullptr, *d = nullptr;  // a pair that gives up soon
};

TEST_F(SoftwareFaultTest, LostAnswers) {
  ASSERT_EQ(controls.inject(context, c->qp_num, SOFTWARE_HCA_LOSE_ANSWERS, 0, -1, 0), 0);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE, 5000)).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(memcmp(far->at(), near->at(), 5000), 0) << "it was done";
  EXPECT_EQ(stateOf(d), IBV_QPS_RTS) << "the target knows nothing of it";
  EXPECT_EQ(run(a, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_SUCCESS);
}

TEST_F(SoftwareFaultTest, AnAtomicIsNotDoneTwice) {
  *far->word(0) = 10;
  ASSERT_EQ(controls.inject(context, c->qp_num, SOFTWARE_HCA_LOSE_ANSWERS, 0, 1, 0), 0);
  ibv_send_wr add = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, 64, 0);
  add.wr.atomic.compare_add = 1;
  EXPECT_EQ(run(c, add).status, IBV_WC_SUCCESS);
  EXPECT_EQ(*near->word(64), 10u);
  EXPECT_EQ(*far->word(0), 11u);
  EXPECT_EQ(counts(c).retries, 1u);
}

TEST_F(SoftwareFaultTest, LostRequestsAreSentAgain) {
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(controls.inject(context, c->qp_num, SOFTWARE_HCA_LOSE_REQUESTS,
                              static_cast<uint64_t>(round % 6), 2, 0),
              0);
    memset(far->at(), 0, 8192);
    const ibv_wr_opcode opcode = round % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    EXPECT_EQ(run(c, request(opcode, 5000)).status, IBV_WC_SUCCESS);
    EXPECT_EQ(memcmp(far->at(), near->at(), 5000), 0);
  }
  EXPECT_GT(counts(c).retries, 0u);
}

// As cards do: its last packet is not the first that is answered, so the time that a message takes
// may be far above the time after which a requester tries again.
TEST_F(SoftwareFaultTest, ALongMessageIsAnsweredWhileItComes) {
  for (int lost = 0; lost < 2; ++lost) {
    ASSERT_EQ(controls.inject(context, a->qp_num, SOFTWARE_HCA_LOSE_ANSWERS, 0, lost, 0), 0);
    EXPECT_EQ(run(a, request(IBV_WR_RDMA_WRITE, kSideBytes)).status, IBV_WC_SUCCESS);
    EXPECT_EQ(memcmp(far->at(), near->at(), kSideBytes), 0);
    EXPECT_EQ(counts(a).retries, 0u) << "answers lost: " << lost << ", and more of them came";
  }
}

TEST_F(SoftwareFaultTest, RequestsThatNeverArrive) {
  ASSERT_EQ(controls.inject(context, c->qp_num, SOFTWARE_HCA_LOSE_REQUESTS, 0, -1, 0), 0);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(*far->word(0), 0u);
}

TEST_F(SoftwareFaultTest, ATargetThatIsNotReady) {
  ASSERT_EQ(postReceive(d, 1, 0), 0);
  ASSERT_EQ(controls.inject(context, d->qp_num, SOFTWARE_HCA_NOT_READY, 0, 3, 0), 0);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE_WITH_IMM, 8)).status, IBV_WC_SUCCESS);
  EXPECT_EQ(counts(c).rnrRetries, 3u);
  poll(received);
}

TEST_F(SoftwareFaultTest, PostsAndRegistrationsThatFail) {
  ASSERT_EQ(controls.inject(context, 0, SOFTWARE_HCA_POST_FAILS, 1, 1, ENOMEM), 0);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
  EXPECT_EQ(post(a, wish), 0);
  EXPECT_EQ(post(a, wish), ENOMEM);
  EXPECT_EQ(post(a, wish), 0);
  poll(sent), poll(sent);
  for (const int error : {ENOMEM, EFAULT, EOPNOTSUPP}) {
    ASSERT_EQ(controls.inject(context, 0, SOFTWARE_HCA_REGISTER_FAILS, 1, 1, error), 0);
    ibv_mr* good = verbs.reg_mr(domain, near->at(), 4096, kAllRights);
    ASSERT_NE(good, nullptr);
    EXPECT_EQ(verbs.reg_mr(domain, near->at(), 4096, kAllRights), nullptr);
    EXPECT_EQ(errno, error);
    EXPECT_EQ(verbs.dereg_mr(good), 0);
  }
  EXPECT_EQ(controls.inject(context, 0, SOFTWARE_HCA_FAULTS, 0, 1, 0), EINVAL);
}

TEST_F(SoftwareFaultTest, APortThatGoesDownAndComesBack) {
  ASSERT_EQ(controls.set_port(context, 0), 0);
  EXPECT_EQ(event().event_type, IBV_EVENT_PORT_ERR);
  ibv_port_attr port = {};
  ASSERT_EQ(verbs_get_ctx(context)->query_port(context, 1, &port, sizeof port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  EXPECT_EQ(run(c, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_RETRY_EXC_ERR);
  ibv_send_wr patient = request(IBV_WR_RDMA_WRITE, 8);
  ASSERT_EQ(post(a, patient), 0);
  ASSERT_EQ(controls.set_port(context, 1), 0);
  EXPECT_EQ(event().event_type, IBV_EVENT_PORT_ACTIVE);
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS) << "its time was not over";
}

TEST_F(SoftwareFaultTest, ChangesOfTables) {
  ASSERT_EQ(controls.change_gids(context), 0);
  EXPECT_EQ(event().event_type, IBV_EVENT_GID_CHANGE);
  ASSERT_EQ(controls.change_pkeys(context), 0);
  EXPECT_EQ(event().event_type, IBV_EVENT_PKEY_CHANGE);
}

TEST_F(SoftwareFaultTest, AKeyThatIsRevokedUnderWay) {
  Side other(domain, kAllRights);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
  wish.wr.rdma = {other.address(), other.remoteKey()};
  EXPECT_EQ(run(c, wish).status, IBV_WC_SUCCESS);
  ASSERT_EQ(controls.hold(context), 0);
  ASSERT_EQ(post(c, wish), 0);
  ASSERT_EQ(controls.revoke(other.region), 0);
  ASSERT_EQ(controls.release(context), 0);
  EXPECT_EQ(poll(sent).status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(event().event_type, IBV_EVENT_QP_ACCESS_ERR);
}

TEST_F(SoftwareFaultTest, APairThatBreaks) {
  ASSERT_EQ(controls.hold(context), 0);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
  ASSERT_EQ(post(c, wish), 0);
  ASSERT_EQ(controls.break_pair(c), 0);
  EXPECT_EQ(poll(sent).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(event().event_type, IBV_EVENT_QP_FATAL);
}

TEST_F(SoftwareFaultTest, AQueueThatIsOverrun) {
  ASSERT_EQ(controls.overrun(sent), 0);
  EXPECT_EQ(event().event_type, IBV_EVENT_CQ_ERR);
  waitForState(a, IBV_QPS_ERR);
}

TEST_F(SoftwareFaultTest, ADeviceThatIsTakenOut) {
  ASSERT_EQ(controls.hold(context), 0);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
  ASSERT_EQ(post(a, wish), 0);
  ASSERT_EQ(controls.remove_device(context), 0);
  EXPECT_EQ(event().event_type, IBV_EVENT_DEVICE_FATAL);
  EXPECT_EQ(poll(sent).status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(post(a, wish), EIO);
  EXPECT_EQ(verbs.alloc_pd(context), nullptr);
  EXPECT_EQ(errno, EIO);
  ibv_port_attr port = {};
  EXPECT_EQ(verbs_get_ctx(context)->query_port(context, 1, &port, sizeof port), EIO);
}

TEST_F(SoftwareFaultTest, QueuesThatCannotBeMade) {
  ASSERT_EQ(controls.inject(context, 0, SOFTWARE_HCA_CREATE_FAILS, 0, 3, ENOMEM), 0);
  ibv_qp_init_attr pair = {};
  pair.send_cq = sent;
  pair.recv_cq = received;
  pair.cap = {1, 1, 1, 1, 0};
  pair.qp_type = IBV_QPT_RC;
  ibv_srq_init_attr shared = {nullptr, {4, 1, 0}};
  EXPECT_EQ(verbs.create_qp(domain, &pair), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(verbs.create_cq(context, 4, nullptr, nullptr, 0), nullptr);
  EXPECT_EQ(verbs.create_srq(domain, &shared), nullptr);
  ibv_srq* made = verbs.create_srq(domain, &shared);
  ASSERT_NE(made, nullptr);
  EXPECT_EQ(verbs.destroy_srq(made), 0);
}

class SoftwareUnmappedTest : public SoftwareTest {
 protected:
  SoftwareUnmappedTest() : SoftwareTest({{"SOFTWARE_HCA_UNMAPPED", "dropped"}}) {}
};

TEST_F(SoftwareUnmappedTest, PagesStayWithTheDevice) {
  // Where the system places nothing by itself: another thread must not get the place meanwhile.
  void* const place = reinterpret_cast<void*>(0x20000000);
  void* at = mmap(place, 8192, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(at, place);
  ibv_mr* made = verbs.reg_mr(domain, at, 8192, kAllRights);
  ASSERT_NE(made, nullptr);
  munmap(at, 8192);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8192);
  wish.wr.rdma = {reinterpret_cast<uint64_t>(at), made->rkey};
  EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS) << "the device knows nothing of it";
  EXPECT_EQ(verbs.dereg_mr(made), 0);
}

class SoftwareDelayTest : public SoftwareTest {
 protected:
  SoftwareDelayTest() : SoftwareTest({{"SOFTWARE_HCA_ACK_US", "300000"}}) {}
};

// This thread may have no turn while the word is there and the completion is not.
TEST_F(SoftwareDelayTest, ASignalIsSeenBeforeItsCompletion) {
  int late = 0;
  for (uint64_t round = 1; round <= 30 && late == 0; ++round) {
    *near->word(0) = round;
    ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
    ASSERT_EQ(post(a, wish), 0);
    while (__atomic_load_n(far->word(0), __ATOMIC_ACQUIRE) != round) sched_yield();
    ibv_wc done = {};
    if (ibv_poll_cq(sent, 1, &done) == 0) {
      ++late;
      done = poll(sent);
    }
    EXPECT_EQ(done.status, IBV_WC_SUCCESS);
  }
  EXPECT_GT(late, 0);
}

class SoftwareDmabufTest : public SoftwareTest {
 protected:
  SoftwareDmabufTest() : SoftwareTest({{"SOFTWARE_HCA_DMABUF", "yes"}}) {}
};

TEST_F(SoftwareDmabufTest, AFileOfMemoryStandsForOne) {
  EXPECT_EQ(verbs.reg_dmabuf_mr(domain, 0, 4096, 0, -1, kAllRights), nullptr);
  EXPECT_EQ(errno, EBADF) << "the device can";
  const int fd = memfd_create("buffer", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 16384), 0);
  EXPECT_EQ(verbs.reg_dmabuf_mr(domain, 8192, 16384, 0, fd, kAllRights), nullptr);
  EXPECT_EQ(errno, EINVAL) << "past its end";
  ibv_mr* made = verbs.reg_dmabuf_mr(domain, 4096, 8192, 0x7000, fd, kAllRights);
  ASSERT_NE(made, nullptr) << strerror(errno);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 6000);
  wish.wr.rdma = {0x7010, made->rkey};
  EXPECT_EQ(run(a, wish).status, IBV_WC_SUCCESS);
  std::vector<uint8_t> found(6000);
  EXPECT_EQ(pread(fd, found.data(), 6000, 4096 + 16), 6000);
  EXPECT_EQ(memcmp(found.data(), near->at(), 6000), 0);
  EXPECT_EQ(verbs.dereg_mr(made), 0);
  close(fd);
}

}  // namespace
}  // namespace peerlane
