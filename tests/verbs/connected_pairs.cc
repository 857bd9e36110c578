// SPDX-License-Identifier: Apache-2.0
#include "tests/verbs/connected_pairs.h"

#include <poll.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tests/core/soon.h"

namespace peerlane {
namespace {

constexpr std::chrono::seconds kLong{30};  // for an emulated machine

std::atomic<uint64_t> moved{0};

// The guest kit compares it with what the device counted.
class SaysWhatMoved : public testing::Environment {
 public:
  void TearDown() override { printf("moved %llu bytes\n", static_cast<unsigned long long>(moved)); }
};
const auto* const kSaysWhatMoved = testing::AddGlobalTestEnvironment(new SaysWhatMoved);

std::string setting(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

}  // namespace

const DeviceBehaviour& DeviceBehaviour::get() {
  const LoadedVerbs& verbs = LoadedVerbs::get();
  const std::string kernel = setting("VERBS_TEST_BEHAVIOUR", "rxe");
  const std::string name =
      verbs.isSoftware() ? setting("SOFTWARE_HCA_BEHAVIOUR", "hardware") : kernel;
  for (const DeviceBehaviour& behaviour : kBehaviours)
    if (name == behaviour.name) return behaviour;
  fprintf(stderr, "VERBS_TEST_BEHAVIOUR is '%s'; accepted: hardware, rxe\n", name.c_str());
  exit(2);
}

Side::Side(ibv_pd* domain, int access)
    : bytes_(static_cast<uint8_t*>(
          mmap(nullptr, kSideBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
  region = LoadedVerbs::get().reg_mr(domain, bytes_, kSideBytes, access);
}

Side::~Side() {
  if (region != nullptr) {
    EXPECT_EQ(LoadedVerbs::get().dereg_mr(region), 0);
  }
  munmap(bytes_, kSideBytes);
}

void VerbsTest::SetUp() {
  int count = 0;
  ibv_device** list = verbs.get_device_list(&count);
  ASSERT_GT(count, 0) << verbs.path << " knows no device";
  const std::string wanted = setting("VERBS_TEST_DEVICE", list[0]->name);
  for (int i = 0; i < count; ++i)
    if (wanted == list[i]->name) context = verbs.open_device(list[i]);
  verbs.free_device_list(list);
  ASSERT_NE(context, nullptr) << "VERBS_TEST_DEVICE is '" << wanted << "': " << strerror(errno);
  gidIndex = static_cast<uint8_t>(std::stoi(setting("VERBS_TEST_GID", "1")));
  ASSERT_EQ(verbs.query_gid(context, 1, gidIndex, &gid), 0);
  domain = verbs.alloc_pd(context);
  ASSERT_NE(domain, nullptr);
  sent = verbs.create_cq(context, 256, nullptr, nullptr, 0);
  received = verbs.create_cq(context, 256, nullptr, nullptr, 0);
  ASSERT_TRUE(sent != nullptr && received != nullptr);
  near = std::make_unique<Side>(domain, kAllRights);
  far = std::make_unique<Side>(domain, kAllRights);
  ASSERT_TRUE(near->region != nullptr && far->region != nullptr) << strerror(errno);
  for (size_t i = 0; i < kSideBytes; ++i) *near->at(i) = static_cast<uint8_t>(i * 7 + (i >> 8) + 1);
}

void VerbsTest::TearDown() {
  if (context == nullptr) return;
  for (ibv_qp* pair : pairs_) EXPECT_EQ(verbs.destroy_qp(pair), 0);
  near.reset();
  far.reset();
  EXPECT_EQ(verbs.destroy_cq(sent), 0);
  EXPECT_EQ(verbs.destroy_cq(received), 0);
  EXPECT_EQ(verbs.dealloc_pd(domain), 0);
  if (auto* objects = verbs.control("software_hca_objects")) {
    EXPECT_EQ(reinterpret_cast<decltype(&software_hca_objects)>(objects)(context), 0);
  }
  EXPECT_EQ(verbs.close_device(context), 0);
}

ibv_qp* VerbsTest::makePair(const PairWishes& wishes) {
  ibv_qp_init_attr asked = {};
  asked.send_cq = wishes.sendQueue == nullptr ? sent : wishes.sendQueue;
  asked.recv_cq = wishes.receiveQueue == nullptr ? received : wishes.receiveQueue;
  asked.srq = wishes.shared;
  asked.cap = {wishes.sends, wishes.receives, wishes.pieces, wishes.pieces, wishes.inlined};
  asked.qp_type = IBV_QPT_RC;
  asked.sq_sig_all = wishes.signalsAll ? 1 : 0;
  ibv_qp* pair = verbs.create_qp(wishes.domain == nullptr ? domain : wishes.domain, &asked);
  EXPECT_NE(pair, nullptr) << strerror(errno);
  if (pair != nullptr) pairs_.push_back(pair);
  return pair;
}

void VerbsTest::toInit(ibv_qp* pair, const PathWishes& path) {
  ibv_qp_attr change = {};
  change.qp_state = IBV_QPS_INIT;
  change.port_num = 1;
  change.qp_access_flags = path.access;
  ASSERT_EQ(verbs.modify_qp(pair, &change,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
            0);
}

void VerbsTest::toReceive(ibv_qp* pair, uint32_t peer, const PathWishes& path) {
  ibv_qp_attr change = {};
  change.qp_state = IBV_QPS_RTR;
  change.path_mtu = path.mtu;
  change.dest_qp_num = peer;
  change.rq_psn = path.receiveNumber;
  change.max_dest_rd_atomic = path.reads;
  change.min_rnr_timer = path.rnrTimer;
  change.ah_attr.is_global = 1;
  change.ah_attr.port_num = 1;
  change.ah_attr.grh.dgid = gid;
  change.ah_attr.grh.sgid_index = gidIndex;
  change.ah_attr.grh.hop_limit = 64;
  ASSERT_EQ(verbs.modify_qp(pair, &change,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER),
            0);
}

void VerbsTest::toSend(ibv_qp* pair, const PathWishes& path) {
  ibv_qp_attr change = {};
  change.qp_state = IBV_QPS_RTS;
  change.timeout = path.timeout;
  change.retry_cnt = path.retries;
  change.rnr_retry = path.rnrRetries;
  change.sq_psn = path.sendNumber;
  change.max_rd_atomic = path.reads;
  ASSERT_EQ(verbs.modify_qp(pair, &change,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC),
            0);
}

void VerbsTest::connect(ibv_qp* one, ibv_qp* other, const PathWishes& path) {
  for (ibv_qp* pair : {one, other}) {
    toInit(pair, path);
    toReceive(pair, pair == one ? other->qp_num : one->qp_num, path);
    toSend(pair, path);
  }
}

ibv_qp_state VerbsTest::stateOf(ibv_qp* pair) {
  ibv_qp_attr attributes = {};
  ibv_qp_init_attr made = {};
  EXPECT_EQ(verbs.query_qp(pair, &attributes, IBV_QP_STATE, &made), 0);
  return attributes.qp_state;
}

void VerbsTest::waitForState(ibv_qp* pair, ibv_qp_state state) {
  EXPECT_TRUE(soon([&] { return stateOf(pair) == state; }, kLong))
      << "it stays in state " << stateOf(pair);
}

ibv_send_wr VerbsTest::request(ibv_wr_opcode opcode, size_t bytes, size_t from, size_t to) {
  pieces_.push_back(std::make_unique<ibv_sge>(
      ibv_sge{near->address(from), static_cast<uint32_t>(bytes), near->key()}));
  ibv_send_wr made = {};
  made.wr_id = 7;
  made.sg_list = pieces_.back().get();
  made.num_sge = 1;
  made.opcode = opcode;
  made.send_flags = IBV_SEND_SIGNALED;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
    made.wr.atomic.remote_addr = far->address(to);
    made.wr.atomic.rkey = far->remoteKey();
  } else {
    made.wr.rdma.remote_addr = far->address(to);
    made.wr.rdma.rkey = far->remoteKey();
  }
  return made;
}

int VerbsTest::post(ibv_qp* pair, ibv_send_wr& wish) {
  ibv_send_wr* bad = nullptr;
  return ibv_post_send(pair, &wish, &bad);
}

ibv_wc VerbsTest::run(ibv_qp* pair, ibv_send_wr wish) {
  EXPECT_EQ(post(pair, wish), 0);
  const ibv_wc done = poll(pair->send_cq);
  if (done.status == IBV_WC_SUCCESS)
    for (int i = 0; i < wish.num_sge; ++i) countMoved(wish.sg_list[i].length);
  return done;
}

int VerbsTest::postReceive(ibv_qp* pair, uint64_t id, size_t bytes, size_t offset) {
  ibv_sge piece = {far->address(offset), static_cast<uint32_t>(bytes), far->key()};
  ibv_recv_wr wish = {id, nullptr, &piece, bytes == 0 ? 0 : 1};
  ibv_recv_wr* bad = nullptr;
  return ibv_post_recv(pair, &wish, &bad);
}

ibv_wc VerbsTest::poll(ibv_cq* queue) {
  ibv_wc done = {};
  EXPECT_TRUE(soon([&] { return ibv_poll_cq(queue, 1, &done) == 1; }, kLong))
      << "no completion came";
  return done;
}

bool VerbsTest::isEmpty(ibv_cq* queue) {
  ibv_wc done = {};
  return ibv_poll_cq(queue, 1, &done) == 0;
}

ibv_async_event VerbsTest::event() {
  pollfd ready = {context->async_fd, POLLIN, 0};
  ibv_async_event found = {};
  for (;;) {
    const int count = ::poll(&ready, 1, 30'000);
    EXPECT_EQ(count, 1) << "no event came";
    if (count != 1 || verbs.get_async_event(context, &found) != 0) return found;
    verbs.ack_async_event(&found);
    if (found.event_type != IBV_EVENT_COMM_EST) return found;
  }
}

std::vector<ibv_event_type> VerbsTest::events() {
  std::vector<ibv_event_type> found;
  pollfd ready = {context->async_fd, POLLIN, 0};
  ibv_async_event event = {};
  while (::poll(&ready, 1, 0) == 1 && verbs.get_async_event(context, &event) == 0) {
    verbs.ack_async_event(&event);
    if (event.event_type != IBV_EVENT_COMM_EST) found.push_back(event.event_type);
  }
  return found;
}

ibv_qp* VerbsTest::takeLastPair() {
  if (pairs_.empty()) return nullptr;
  ibv_qp* last = pairs_.back();
  pairs_.pop_back();
  return last;
}

void VerbsTest::countMoved(uint64_t bytes) {
  moved += bytes;
}

void ConnectedTest::SetUp() {
  VerbsTest::SetUp();
  if (HasFatalFailure()) return;
  a = makePair();
  b = makePair();
  connect(a, b);
}

}  // namespace peerlane
