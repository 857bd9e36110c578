// SPDX-License-Identifier: Apache-2.0
// What tests count and hold still on the software HCA, and peers that die.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "tests/verbs/software_controls.h"

namespace peerlane {
namespace {

using SoftwareCountTest = SoftwareTest;

TEST_F(SoftwareCountTest, EverythingThatIsPosted) {
  ASSERT_EQ(controls.reset_counts(context), 0);
  std::array<ibv_send_wr, 4> chain = {
      request(IBV_WR_RDMA_WRITE, 100), request(IBV_WR_RDMA_WRITE, 20),
      request(IBV_WR_RDMA_READ, 300), request(IBV_WR_RDMA_WRITE_WITH_IMM, 7)};
  for (size_t i = 0; i < 3; ++i) {
    chain[i].next = &chain[i + 1];
    chain[i].send_flags = 0;
  }
  chain[1].send_flags = IBV_SEND_INLINE;
  ASSERT_EQ(postReceive(b, 0, 0), 0);
  ASSERT_EQ(post(a, chain[0]), 0);
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  poll(received);
  const SoftwareHcaCounts found = counts(a);
  EXPECT_EQ(found.posts, 1u);
  EXPECT_EQ(found.requests, 4u);
  EXPECT_EQ(found.signalled, 1u);
  EXPECT_EQ(found.inlined, 1u);
  EXPECT_EQ(found.pieces, 3u) << "what is inlined has none";
  EXPECT_EQ(found.writes, 2u);
  EXPECT_EQ(found.writeBytes, 120u);
  EXPECT_EQ(found.immediateWrites, 1u);
  EXPECT_EQ(found.readBytes, 300u);
  EXPECT_EQ(found.completions, 1u);
  EXPECT_EQ(found.retries, 0u);
  EXPECT_EQ(counts(b).receives, 1u);
  EXPECT_EQ(counts(b).receiveCompletions, 1u);
  SoftwareHcaCounts all = {};
  ASSERT_EQ(controls.context_counts(context, &all), 0);
  EXPECT_EQ(all.requests, 4u);
  EXPECT_EQ(all.receiveCompletions, 1u);
}

TEST_F(SoftwareCountTest, NothingBeginsWhileItIsHeld) {
  ASSERT_EQ(controls.hold(context), 0);
  for (uint64_t i = 0; i < 5; ++i) {
    ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8, i * 8, i * 8);
    wish.wr_id = i;
    ASSERT_EQ(post(a, wish), 0);
  }
  ASSERT_EQ(controls.settle(context), 0);
  EXPECT_TRUE(isEmpty(sent));
  EXPECT_EQ(*far->word(0), 0u);
  ASSERT_EQ(controls.step(context, 2), 0);
  ASSERT_EQ(controls.settle(context), 0);
  EXPECT_EQ(poll(sent).wr_id, 0u);
  EXPECT_EQ(poll(sent).wr_id, 1u);
  EXPECT_TRUE(isEmpty(sent));
  EXPECT_NE(*far->word(8), 0u);
  EXPECT_EQ(*far->word(16), 0u);
  ASSERT_EQ(controls.release(context), 0);
  for (uint64_t i = 2; i < 5; ++i) EXPECT_EQ(poll(sent).wr_id, i);
}

TEST_F(SoftwareCountTest, TimeOfPosts) {
  ASSERT_EQ(controls.hold(context), 0);
  ASSERT_EQ(controls.measure(context, 1), 0);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 8);
  for (int i = 0; i < 50; ++i) ASSERT_EQ(post(a, wish), 0);
  EXPECT_GT(counts(a).postTicks, 0u);
  EXPECT_EQ(counts(a).doorbells, 0u) << "an engine that is held is not woken";
  ASSERT_EQ(controls.release(context), 0);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
}

class SoftwareLimitTest : public SoftwareTest {
 protected:
  SoftwareLimitTest()
      : SoftwareTest({{"SOFTWARE_HCA_LIMITS",
                       "maxRegions=4,lockedBytes=1048576,maxQueuePairs=3,maxInline=64,maxSge=4"}}) {
  }
};

TEST_F(SoftwareLimitTest, AreKept) {
  EXPECT_EQ(verbs.reg_mr(domain, near->at(), size_t{1} << 20, kAllRights), nullptr);
  EXPECT_EQ(errno, ENOMEM) << "too many bytes";
  ibv_mr* third = verbs.reg_mr(domain, near->at(), 4096, kAllRights);
  ibv_mr* fourth = verbs.reg_mr(domain, near->at(), 4096, kAllRights);
  EXPECT_EQ(verbs.reg_mr(domain, near->at(), 4096, kAllRights), nullptr);
  EXPECT_EQ(errno, ENOMEM) << "too many regions";
  EXPECT_EQ(verbs.dereg_mr(third), 0);
  EXPECT_EQ(verbs.dereg_mr(fourth), 0);
  makePair();
  ibv_qp_init_attr asked = {};
  asked.send_cq = sent;
  asked.recv_cq = received;
  asked.cap = {1, 1, 1, 1, 0};
  asked.qp_type = IBV_QPT_RC;
  EXPECT_EQ(verbs.create_qp(domain, &asked), nullptr);
  EXPECT_EQ(errno, ENOMEM);
}

// Half of a connection in another process, which only waits to be killed.

class SoftwareDeathTest : public SoftwareTest {
 protected:
  void SetUp() override {
    std::array<int, 2> up, down;
    ASSERT_EQ(pipe(up.data()), 0);
    ASSERT_EQ(pipe(down.data()), 0);
    child = fork();
    if (child == 0) beChild(up[1], down[0]);
    SoftwareTest::SetUp();
    ASSERT_EQ(read(up[0], &childNumber, sizeof childNumber),
              static_cast<ssize_t>(sizeof childNumber));
    PathWishes path;
    path.timeout = 10;
    path.retries = 2;
    c = makePair();
    toInit(c, path);
    toReceive(c, childNumber, path);
    toSend(c, path);
    ASSERT_EQ(write(down[1], &c->qp_num, sizeof c->qp_num), static_cast<ssize_t>(sizeof c->qp_num));
    std::array<uint64_t, 2> place = {};
    ASSERT_EQ(read(up[0], place.data(), sizeof place), static_cast<ssize_t>(sizeof place));
    childAddress = place[0];
    childKey = static_cast<uint32_t>(place[1]);
    for (const int fd : {up[0], up[1], down[0], down[1]}) close(fd);
  }
  [[noreturn]] void beChild(int up, int down) {
    SoftwareTest::SetUp();
    ibv_qp* pair = makePair();
    uint32_t peer = 0;
    if (write(up, &pair->qp_num, sizeof pair->qp_num) < 0) _exit(1);
    if (read(down, &peer, sizeof peer) != sizeof peer) _exit(1);
    toInit(pair);
    toReceive(pair, peer);
    toSend(pair);
    const std::array<uint64_t, 2> place = {far->address(), far->remoteKey()};
    if (write(up, place.data(), sizeof place) < 0) _exit(1);
    for (;;) pause();
  }
  ibv_wc writeToChild() {
    ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 5000);
    wish.wr.rdma = {childAddress, childKey};
    return run(c, wish);
  }
  void killChild() {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  pid_t child = 0;
  uint32_t childNumber = 0, childKey = 0;
  uint64_t childAddress = 0;
  ibv_qp* c = nullptr;
};

TEST_F(SoftwareDeathTest, APeerThatDies) {
  EXPECT_EQ(writeToChild().status, IBV_WC_SUCCESS);
  killChild();
  EXPECT_EQ(writeToChild().status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(run(a, request(IBV_WR_RDMA_WRITE, 8)).status, IBV_WC_SUCCESS) << "others go on";
}

TEST_F(SoftwareDeathTest, APeerThatIsStopped) {
  kill(child, SIGSTOP);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  ibv_send_wr wish = request(IBV_WR_RDMA_WRITE, 5000);
  wish.wr.rdma = {childAddress, childKey};
  ASSERT_EQ(post(c, wish), 0);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(isEmpty(sent)) << "nobody answers, nothing is lost";
  kill(child, SIGCONT);
  EXPECT_EQ(poll(sent).status, IBV_WC_SUCCESS);
  killChild();
}

}  // namespace
}  // namespace peerlane
