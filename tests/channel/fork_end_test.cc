// SPDX-License-Identifier: Apache-2.0
//
// A forked child ends by any way while threads of its parent wait in every object that both have,
// and asks for no lock of its parent.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <future>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/channel/operation/host_stream.h"
#include "tests/channel/port/port_pair.h"
#include "tests/core/held_locks.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kBytes = 4096;
constexpr auto kLong = 10min;

// One of each kind of object, with a thread of this process waiting in each that can be waited in.
class Objects {
 public:
  explicit Objects(const Config& config) : contexts_(config) {
    Context& a = *contexts_.a;
    Context& b = *contexts_.b;
    const Peer& toA = contexts_.toA;
    const Peer& toB = contexts_.toB;
    near_ = MUST(a.allocate(kBytes));
    far_ = MUST(b.allocate(kBytes));
    remote_ = MUST(toB.importRegion(far_.share()));
    EXPECT_OK(remote_.prepare(kSoon));
    fresh_ = MUST(toB.importRegion(far_.share()));
    heap_.resize(kBytes);
    if (auto cached = a.regionOf(heap_.data(), kBytes, Access::kRemoteRead); cached.isOk())
      cached_ = std::move(*cached);
    const Block block = this->block();
    plan_ = MUST(Plan::create(toB, Direction::kPut, {&block, 1}));
    done_ = MUST(plan_.post());
    EXPECT_OK(done_.wait(kSoon));
    (void)MUST(a.acceptFd());
    (void)MUST(notificationFd(toA));
    (void)MUST(toA.messageFd(3));

    signal_.push_back(MUST(Signal::create(toA, 4)));  // no thread has a copy
    (void)MUST(signal_[0].fd(7));
    signal_.push_back(MUST(Signal::create(toA, 5)));
    (void)MUST(signal_[1].fd(7));
    wait([signal = signal_[1]] { (void)signal.wait(1, kLong); });
    wait([toB] { (void)waitNotification(toB, kLong); });
    wait([toA] { (void)toA.receiveMessage(9, kLong); });
    wait([&a] { (void)a.accept(kLong); });
    invitation_ = MUST(a.invite());
    wait([this] { (void)invitation_.accept(kLong); });
    Notify full;
    full.message = std::span<const std::byte>();
    for (int i = 0; i < 17; ++i) pending_.push_back(MUST(notify(toB, full)));
    pending_.back().onEnd([](const Status&) {});
    (void)MUST(pending_.back().fd());
    wait([last = pending_.back()] { (void)last.wait(kLong); });

    auto other = std::async(std::launch::async, [&] {
      return Communicator::create(b, {toA, Peer()}, 1);
    });
    ranks_.push_back(MUST(Communicator::create(a, {Peer(), toB}, 0)));
    ranks_.push_back(MUST(other.get()));
    stream_ = MUST(HostStream::create());
    MessageOptions behind;
    behind.stream = stream_.get();
    pending_.push_back(MUST(ranks_[0]->recv(1, near_, 0, 64)));
    pending_.push_back(MUST(ranks_[0]->recv(1, near_, 64, 64, behind)));
    pending_.push_back(MUST(ranks_[1]->send(0, far_, 0, 64 << 4)));  // to the first: too long
    pending_.push_back(MUST(ranks_[0]->send(1, std::span<const std::byte>(heap_))));
    wait([last = pending_.back()] { (void)last.wait(kLong); });
    wait([&a, region = near_] { (void)a.unregister(region, kLong); });

    openPorts();
    wait([semaphore = ports_[0].semaphore] { (void)semaphore.wait(1, kLong); });
    wait([channel = ports_[1].channel] { (void)channel.flush(kLong); });  // nobody started it
    EXPECT_OK(ports_[1].channel.put(0, 0, 64));
  }
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;
  ~Objects() = default;

  // Each before what it uses, as programs do.
  void drop() {
    for (PortSide& side : ports_) side.channel = PortChannel();
    for (PortSide& side : ports_) side.semaphore = PortSemaphore();
    for (PortSide& side : ports_) side.connection = PortConnection();
    for (PortSide& side : ports_) side.service.reset();
    for (const Transfer& transfer : pending_) transfer.cancel();
    pending_.clear();
    done_ = Transfer();
    stream_.reset();
    ranks_.clear();
    plan_ = Plan();
    signal_.clear();
    invitation_ = Invitation();
    fresh_ = remote_ = RemoteRegion();
    near_ = far_ = cached_ = Region();
    for (PortSide& side : ports_) side = PortSide();
    contexts_.toA.close();
    contexts_.toA = contexts_.toB = Peer();
    dropContexts();
  }
  void dropContexts() {
    contexts_.a.reset();
    contexts_.b.reset();
  }
  Status use() const {
    const Block block{&far_, 0, &back_, 0, kBytes};
    PEERLANE_ASSIGN(const Transfer put, peerlane::put(contexts_.toA, {&block, 1}));
    return put.wait(kSoon);
  }
  void prepareUse() {
    other_ = MUST(contexts_.a->allocate(kBytes));
    back_ = MUST(contexts_.toA.importRegion(other_.share()));
    EXPECT_OK(use());
  }

 private:
  Block block() const { return {&near_, 0, &remote_, 0, kBytes}; }
  // The threads stay until the process ends.
  static void wait(std::function<void()> call) {
    std::promise<void> begun;
    auto hasBegun = begun.get_future();
    std::thread([&begun, call = std::move(call)] {
      begun.set_value();
      call();
    }).detach();
    hasBegun.wait();
  }
  // The first service's proxy runs.
  void openPorts() {
    ports_[0].context = contexts_.a.get();
    ports_[1].context = contexts_.b.get();
    ports_[0].peer = contexts_.toB;
    ports_[1].peer = contexts_.toA;
    for (PortSide& side : ports_) ASSERT_OK(side.open(kBytes, {}, true));
    auto there =
        std::async(std::launch::async, [&] { return ports_[1].join(ports_[0].region.share(), 7); });
    ASSERT_OK(ports_[0].join(ports_[1].region.share(), 7));
    ASSERT_OK(there.get());
    ASSERT_OK(ports_[0].service->start());
  }

  ContextPair contexts_;
  std::vector<std::byte> heap_;
  Region near_, far_, cached_, other_;
  RemoteRegion remote_, fresh_, back_;
  Plan plan_;
  Transfer done_;
  std::vector<Transfer> pending_;
  std::vector<Signal> signal_;
  Invitation invitation_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
  std::unique_ptr<HostStream> stream_;
  std::array<PortSide, 2> ports_;
};

struct ForkCase {
  RouteCase route;
  bool isSealed = false;
};

class ForkEnd : public testing::TestWithParam<ForkCase> {
 protected:
  Config config() const {
    Config config = configFor(GetParam().route);
    config.tcpEncrypt = GetParam().isSealed;
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Routes, ForkEnd,
                         testing::Values(ForkCase{kSelf}, ForkCase{kMapped}, ForkCase{kCma},
                                         ForkCase{kRing}, ForkCase{kTcp}, ForkCase{kTcp, true}),
                         [](const auto& each) {
                           return std::string(each.param.isSealed ? "sealed_" : "") +
                                  each.param.route.name;
                         });

std::unique_ptr<Objects> objects;  // destroyed by exit(), too

int statusOf(const std::function<void()>& way) {
  const pid_t child = held_locks::forkWithLocksHeld();
  if (child == 0) {
    alarm(60);
    way();
    exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// In a process of its own, whose threads wait until it ends.
void expectEnds(const Config& config, const std::function<void()>& way) {
  const pid_t process = fork();
  if (process == 0) {
    alarm(120);
    held_locks::noteLocks();
    objects = std::make_unique<Objects>(config);
    objects->prepareUse();
    const int status = statusOf(way);
    EXPECT_EQ(status, 0);
    EXPECT_OK(objects->use());  // as if nothing had been
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(process, &status, 0), process);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_P(ForkEnd, ByExit) {
  expectEnds(config(), [] {});
}
TEST_P(ForkEnd, ByUnderscoreExit) {
  expectEnds(config(), [] { _exit(0); });
}
TEST_P(ForkEnd, WithAllDropped) {
  expectEnds(config(), [] {
    objects->drop();
    objects.reset();
  });
}
TEST_P(ForkEnd, WithTheContextsDroppedFirst) {
  expectEnds(config(), [] {
    objects->dropContexts();
    objects.reset();
  });
}

}  // namespace
}  // namespace peerlane
