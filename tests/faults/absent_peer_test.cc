// SPDX-License-Identifier: Apache-2.0
//
// A connection that ends without a goodbye while the process at its other end lives: what that may
// write to is kept until its end is proven, and nothing else is.
#include <array>
#include <csignal>
#include <filesystem>

#include "peerlane/os/process.h"
#include "peerlane/os/ptrace_permission.h"
#include "peerlane/os/socket.h"
#include "peerlane/os/unix_peer.h"
#include "tests/faults/intruder.h"
#include "tests/faults/surviving_side.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/open_files.h"

namespace peerlane {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBytes = 1 << 20;

class AbsentPeer : public testing::TestWithParam<const char*> {
 protected:
  AbsentPeer() : context_(MUST(Context::create({configOfRoute(GetParam()), {}, ""}))) {}

  void start() {
    memory_ = std::make_unique<SideMemory>(*context_, GetParam(), kBytes);
    other_ = std::make_unique<PeerProcess>(std::vector<std::string>{GetParam(), "1048576"});
  }
  // With a process that may be there already; it holds `memory_` afterwards. No handle is kept.
  void meet() {
    if (!other_) start();
    other_->tell((std::exchange(hasMet_, true) ? "meet " : "") + context_->ticket());
    const Peer peer = MUST(context_->accept(kSoon));
    tellReference(peer, 1, memory_->region());
    (void)hearReference(peer, 1);
    ASSERT_EQ(other_->line(), "ready");
  }
  // The other process ends the connection, and this side has seen it.
  void leave(const char* how, const char* answer) {
    const Peer peer = context_->peers().at(0);
    other_->tell(how);
    if (answer != nullptr) {
      EXPECT_EQ(other_->line(), answer);
    }
    EXPECT_TRUE(soon([&] { return peer.state() == "lost"; }));
    EXPECT_TRUE(soon([&] { return context_->peers().empty(); })) << context_->dump();
  }
  Status takeBack(std::chrono::nanoseconds timeout) {
    return context_->unregister(memory_->region(), timeout);
  }

  std::unique_ptr<Context> context_;
  std::unique_ptr<PeerProcess> other_;
  std::unique_ptr<SideMemory> memory_;
  bool hasMet_ = false;
};

INSTANTIATE_TEST_SUITE_P(Routes, AbsentPeer, testing::Values("mapped", "cma", "ring"),
                         [](const auto& each) { return std::string(each.param); });

TEST_P(AbsentPeer, KeepsTheMemoryItMayWriteUntilItsEndIsProven) {
  meet();
  leave("hang up", "hung up");
  const Status kept = takeBack(50ms);
  EXPECT_EQ(kept.code(), Code::kPeerSilent) << kept.toString();
  EXPECT_NE(context_->dump().find("left without a goodbye"), std::string::npos) << context_->dump();
  other_->kill();
  EXPECT_OK(takeBack(kSoon));
  EXPECT_EQ(context_->dump().find("left without a goodbye"), std::string::npos) << context_->dump();
}

TEST_P(AbsentPeer, KeepsNoDescriptorsHoweverOftenItComesBack) {
  meet();
  leave("hang up", "hung up");
  Footprint once;
  // What the connection held goes a little later than the peer's name.
  const size_t kept = 2;  // a process, and its memory
  EXPECT_TRUE(soon([&] {
    meet();
    leave("hang up", "hung up");
    const Footprint before = std::exchange(once, Footprint::of(*context_));
    return before == once;
  })) << once;
  for (int i = 0; i < 10; ++i) {
    meet();
    leave("hang up", "hung up");
  }
  EXPECT_TRUE(soon([&] { return Footprint::of(*context_).descriptors <= once.descriptors; }))
      << once << Footprint::of(*context_);
  other_->kill();
  EXPECT_OK(takeBack(kSoon));
  EXPECT_TRUE(soon([&] { return Footprint::of(*context_).descriptors <= once.descriptors - kept; }))
      << once << Footprint::of(*context_);
}

// By which `peerlane doctor` says for how many peers the limit lasts.
TEST_P(AbsentPeer, TookNoMoreDescriptorsThanDoctorCounts) {
  constexpr size_t kOfAPeer = 13;
  start();
  const size_t before = Footprint::of(*context_).descriptors;
  meet();
  size_t taken = 0;
  EXPECT_TRUE(soon([&] {  // one that is being passed is open twice
    taken = Footprint::of(*context_).descriptors - before;
    return taken <= kOfAPeer;
  })) << taken;
  EXPECT_GE(taken, kOfAPeer - 5) << "doctor promises too little";
}

TEST_P(AbsentPeer, ThatCallsExecHasEnded) {
  meet();
  leave("exec", nullptr);
  EXPECT_OK(takeBack(kSoon));
  EXPECT_EQ(other_->ask("who are you?"), "idle") << "the process lives";
}

// Its number is not known here, so that the peer's end can be noticed by nothing but a pidfd.
TEST(AbsentPeerOfAnotherNamespace, IsNotTakenForDead) {
  if (::geteuid() != 0) return;  // nobody else may make one
  SurvivingSide side(configOfRoute("mapped"), "mapped", kBytes, {"namespace"});
  ASSERT_OK(side.theirs.prepare(kSoon));
  EXPECT_EQ(side.other->ask("state"), "ready");
  hangUp();
  for (std::string state; state != "lost";) state = side.other->ask("state");
  EXPECT_EQ(side.other->ask("unregister"), "PeerSilent");
}

size_t socketsOf(pid_t process) {
  size_t count = 0;
  std::error_code none;  // of one that is being closed
  for (const auto& each :
       std::filesystem::directory_iterator("/proc/" + std::to_string(process) + "/fd"))
    count += std::filesystem::read_symlink(each.path(), none).string().starts_with("socket:");
  return count;
}

// A child that it forked goes on. The connections do not: on another host, where nothing but their
// end tells of the parent's, a socket that the child held would keep them.
TEST(PeerWithAChild, LeavesItNoSocketAndIsNoticedWhenItDies) {
  SurvivingSide side(configOfRoute("tcp"), "tcp", kBytes);
  const pid_t child = std::stoi(side.other->ask("fork"));
  ASSERT_GT(child, 0);
  EXPECT_GE(socketsOf(side.other->pid()), 2u) << "the control connection and the data's";
  // Its parent may come out of fork() first.
  EXPECT_TRUE(soon([&] { return socketsOf(child) == 0; })) << socketsOf(child) << " sockets";
  side.other->kill();
  EXPECT_TRUE(soon([&] { return side.peer.state() == "lost"; })) << side.peer.state();
  EXPECT_EQ(::kill(child, SIGKILL), 0) << "the child had ended before";
}

// --- Yama ---

std::vector<pid_t> let_in;  // by the tests' system, which stands for a Yama that asks for it

class WithYama {
 public:
  WithYama() : before_(internal::ptraceSystem()) {
    let_in.clear();
    internal::ptraceSystem() = {[] { return std::optional(1); },
                                [](pid_t pid) {
                                  let_in.push_back(pid);
                                  return Status::ok();
                                }};
  }
  ~WithYama() { internal::ptraceSystem() = before_; }
  WithYama(const WithYama&) = delete;
  WithYama& operator=(const WithYama&) = delete;

 private:
  const internal::PtraceSystem before_;
};

TEST(PtraceOfOnePeer, IsGivenToTheFirstOfAllContextsAndTakenBackWithItsLink) {
  const WithYama yama;
  SurvivingSide first(configOfRoute("cma"), "cma", kBytes);
  const std::vector<pid_t> one{first.other->pid()};
  EXPECT_EQ(let_in, one);
  {
    SurvivingSide second(Config(), "any", kBytes);  // in another context
    EXPECT_EQ(let_in, one) << "the first was pushed out";
    second.peer.close();
  }
  EXPECT_EQ(let_in, one);
  first.peer.close();  // though the handle is kept
  EXPECT_EQ(let_in, (std::vector<pid_t>{one[0], 0}));
  SurvivingSide third(Config(), "any", kBytes);
  EXPECT_EQ(let_in, (std::vector<pid_t>{one[0], 0, third.other->pid()}));
}

// Whoever sends a recorded hello has shown nothing.
TEST(PtraceOfOnePeer, IsNotGivenForARecordedHello) {
  const WithYama yama;
  Config config;
  config.links = {"shm"};
  config.connectTimeout = 2s;
  auto context = MUST(Context::create({config, {}, ""}));
  const std::string address = context->addresses().front();
  Intruder::Bytes recorded;
  {
    Intruder honest(address);
    recorded = honest.hello(MUST(Secret::fromText(context->secretText())));
  }
  const Fd socket = MUST(connectStart(MUST(SocketAddress::parse(address))));
  ASSERT_TRUE(soon([&] { return sendSome(socket.get(), recorded).isOk(); }));
  size_t heard = 0;
  std::vector<Fd> files;
  std::array<std::byte, 4096> space;
  EXPECT_TRUE(soon([&] {
    const auto got = recvWithFds(socket.get(), space, files);
    if (got.isOk()) heard += *got;
    return got.isOk() ? *got == 0 : got.status().code() != Code::kTryAgain;
  }));
  EXPECT_GE(heard, kHelloBytes);
  EXPECT_TRUE(files.empty()) << files.size() << " descriptors were given to a stranger";
  EXPECT_TRUE(let_in.empty()) << "process " << let_in.front() << " was let in";
}

// --- Whoever cannot be watched is not let in ---

TEST(ShortageOfDescriptors, TakesNoPeerWhoseEndWouldNotBeNoticed) {
  Config config;
  config.links = {"tcp"};
  auto context = MUST(Context::create({config, {}, ""}));
  const size_t before = MUST(openFileCount());
  Intruder intruder(context->addresses().front());
  ASSERT_TRUE(soon([&] { return MUST(openFileCount()) >= before + 2; })) << "not accepted";
  control::Bye said;
  {
    const FewDescriptors none(0);
    intruder.enter(MUST(Secret::fromText(context->secretText())));
    said = intruder.hear<control::Bye>();
  }
  EXPECT_EQ(said.code, Code::kUnavailable) << said.reason;
  EXPECT_NE(said.reason.find("whose end it would not notice"), std::string::npos) << said.reason;
}

}  // namespace
}  // namespace peerlane
