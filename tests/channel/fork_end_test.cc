// SPDX-License-Identifier: Apache-2.0
//
// A forked child ends by any way while threads of its parent wait in every object that both have.
// It finds the parent's locks as they were at the fork, and a thread that held one is not there to
// let go of it. So here each lock and condition that was ever used before the fork counts as held
// for ever: a child that asks for one is told where, and has failed.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <future>

#include "peerlane/channel/communicator/communicator.h"
#include "peerlane/channel/operation/host_stream.h"
#include "tests/channel/port/port_pair.h"

namespace peerlane {
namespace {

// Addresses of locks and conditions. Never frees, never grows, takes no lock.
class Addresses {
 public:
  void add(const void* address) { (void)place(address, true); }
  bool has(const void* address) { return place(address, false); }

 private:
  bool place(const void* address, bool adds) {
    for (size_t at = reinterpret_cast<uintptr_t>(address) / 8;; ++at) {
      std::atomic<const void*>& slot = slots_.at(at % kSlots);
      const void* known = slot.load();
      if (known == nullptr && (!adds || slot.compare_exchange_strong(known, address))) return adds;
      if (known == address) return true;
    }
  }
  static constexpr size_t kSlots = size_t{1} << 18;
  std::array<std::atomic<const void*>, kSlots> slots_{};
};

Addresses used;         // before the fork
Addresses takenByFork;  // by handlers of fork(), which let go of them in the child
// While the program was loaded: the CUDA runtime has one for the list of its kernels, and takes it
// again when the program ends.
Addresses ofLoading;
enum class Phase : uint8_t { kLoading, kParent, kChild };
Phase phase = Phase::kLoading;
thread_local bool forks = false;

void note(const void* lock) {
  (phase == Phase::kLoading ? ofLoading : forks ? takenByFork : used).add(lock);
}
bool isHeld(const void* lock) {
  return phase == Phase::kChild && used.has(lock) && !takenByFork.has(lock) && !ofLoading.has(lock);
}
[[noreturn]] void failAt(const char* call) {
  phase = Phase::kParent;
  std::array<void*, 40> frames{};
  dprintf(STDERR_FILENO, "%s of an object of the parent, which may be held for ever:\n", call);
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), static_cast<int>(frames.size())),
                       STDERR_FILENO);
  _exit(90);
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace peerlane

using peerlane::failAt;
using peerlane::isHeld;
using peerlane::note;

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  static const auto next = peerlane::real<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  if (isHeld(mutex)) failAt("pthread_mutex_lock");
  note(mutex);
  return next(mutex);
}
extern "C" int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  static const auto next = peerlane::real<int (*)(pthread_mutex_t*)>("pthread_mutex_trylock");
  if (isHeld(mutex)) return EBUSY;
  note(mutex);
  return next(mutex);
}
extern "C" int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  static const auto next = peerlane::real<int (*)(pthread_rwlock_t*)>("pthread_rwlock_wrlock");
  if (isHeld(lock)) failAt("pthread_rwlock_wrlock");
  note(lock);
  return next(lock);
}
extern "C" int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  static const auto next = peerlane::real<int (*)(pthread_rwlock_t*)>("pthread_rwlock_rdlock");
  if (isHeld(lock)) failAt("pthread_rwlock_rdlock");
  note(lock);
  return next(lock);
}
extern "C" int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static const auto next =
      peerlane::real<int (*)(pthread_cond_t*, pthread_mutex_t*)>("pthread_cond_wait");
  if (peerlane::phase == peerlane::Phase::kChild) failAt("pthread_cond_wait");
  note(condition);
  return next(condition, mutex);
}
extern "C" int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                                      clockid_t clock, const timespec* until) {
  static const auto next =
      peerlane::real<int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*)>(
          "pthread_cond_clockwait");
  if (peerlane::phase == peerlane::Phase::kChild) failAt("pthread_cond_clockwait");
  note(condition);
  return next(condition, mutex, clock, until);
}
extern "C" int pthread_cond_destroy(pthread_cond_t* condition) noexcept {
  static const auto next = peerlane::real<int (*)(pthread_cond_t*)>("pthread_cond_destroy");
  if (isHeld(condition)) failAt("pthread_cond_destroy");  // it waits for the threads that wait
  return next(condition);
}
extern "C" int pthread_join(pthread_t thread, void** result) {
  static const auto next = peerlane::real<int (*)(pthread_t, void**)>("pthread_join");
  if (peerlane::phase == peerlane::Phase::kChild) failAt("pthread_join");
  return next(thread, result);
}

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

pid_t forkNow() {
  forks = true;
  const pid_t child = fork();
  forks = false;
  return child;
}

std::unique_ptr<Objects> objects;  // destroyed by exit(), too

int statusOf(const std::function<void()>& way) {
  const pid_t child = forkNow();
  if (child == 0) {
    alarm(60);
    phase = Phase::kChild;
    way();
    exit(0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// In a process of its own, whose threads wait until it ends.
void expectEnds(const Config& config, const std::function<void()>& way) {
  const pid_t process = forkNow();
  if (process == 0) {
    alarm(120);
    phase = Phase::kParent;
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
