// SPDX-License-Identifier: Apache-2.0
//
// Where the system does not let processes read each other's memory: the ring takes over and the
// route says so, or, with PEERLANE_STRICT, nothing does; and other users stay outside.
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/faults/intruder.h"
#include "tests/faults/surviving_side.h"

namespace peerlane {
namespace {

constexpr size_t kBytes = 1 << 20;
constexpr const char* kFallbacks = "peerlane_fallbacks_total";
constexpr uid_t kNobody = 65534;
constexpr uid_t kStranger = 65533;

// An administrator may read any process: the tests are about those who may not.
class WithoutPtrace {
 public:
  WithoutPtrace() { change(false); }
  ~WithoutPtrace() { change(true); }
  WithoutPtrace(const WithoutPtrace&) = delete;
  WithoutPtrace& operator=(const WithoutPtrace&) = delete;

 private:
  // Of this thread, and of those it makes.
  static void change(bool effective) {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
    ASSERT_EQ(::syscall(SYS_capget, &header, data), 0);
    constexpr uint32_t kBit = 1u << CAP_SYS_PTRACE;
    if (effective)
      data[0].effective |= data[0].permitted & kBit;
    else
      data[0].effective &= ~kBit;
    ASSERT_EQ(::syscall(SYS_capset, &header, data), 0);
  }
};

Config onlyShm(bool strict) {
  Config config;
  config.links = {"shm"};
  config.strict = strict;
  return config;
}

std::string refusedBy(const Peer& peer) {
  std::string text;
  for (const std::string& why : peer.route().refused) text += why + "\n";
  return text;
}

class CmaRefused : public testing::Test {
 protected:
  const WithoutPtrace withoutPtrace_;
};

TEST_F(CmaRefused, BySomebodyUndumpableTheRingTakesOver) {
  SurvivingSide side(onlyShm(false), "any", kBytes, {"undumpable", "private"});
  EXPECT_EQ(side.peer.route().privateEngine, "ring");
  const std::string refused = refusedBy(side.peer);
  EXPECT_NE(refused.find("engine cma: "), std::string::npos) << refused;
  EXPECT_NE(refused.find("ermi"), std::string::npos) << refused;  // not permitted
  EXPECT_EQ(metricOf(*side.context, kFallbacks), 1);
  EXPECT_EQ(side.other->ask("fill 5"), "filled");
  EXPECT_OK(side.move(Direction::kGet));
  EXPECT_EQ(side.theirs.engine(), "ring");
  EXPECT_TRUE(isFilledWith(side.memory->data(), kBytes, 5));
  std::memset(side.memory->data(), 6, kBytes);
  EXPECT_OK(side.move(Direction::kPut));
  EXPECT_EQ(side.other->ask("look"), "6");
  // Memory that can be mapped is as fast as ever.
  EXPECT_EQ(side.peer.route().sharedEngine, "mapped");
}

// Begun by cma, ended by the ring.
TEST_F(CmaRefused, BySomebodyWhoForbidsItLaterTheRingTakesOver) {
  SurvivingSide side(onlyShm(false), "any", kBytes, {"private"});
  EXPECT_EQ(side.peer.route().privateEngine, "cma");
  EXPECT_EQ(side.other->ask("fill 5"), "filled");
  EXPECT_OK(side.move(Direction::kGet));
  EXPECT_EQ(side.other->ask("forbid reading"), "forbidden");
  EXPECT_EQ(side.other->ask("fill 6"), "filled");
  EXPECT_OK(side.move(Direction::kGet));
  EXPECT_TRUE(isFilledWith(side.memory->data(), kBytes, 6));
  std::memset(side.memory->data(), 7, kBytes);
  EXPECT_OK(side.move(Direction::kPut));
  EXPECT_EQ(side.other->ask("look"), "7");
}

TEST_F(CmaRefused, StrictlyItIsAnErrorThatSaysWhy) {
  SurvivingSide side(onlyShm(true), "any", kBytes, {"undumpable", "private"});
  for (const Direction direction : {Direction::kPut, Direction::kGet}) {
    const Status refused = side.move(direction);
    EXPECT_EQ(refused.code(), Code::kNotSupported) << refused.toString();
    EXPECT_NE(refused.message().find("PEERLANE_STRICT"), std::string_view::npos);
    EXPECT_NE(refused.message().find("cma: "), std::string_view::npos) << refused.toString();
  }
  EXPECT_EQ(side.peer.state(), "ready");
}

TEST_F(CmaRefused, ByChoiceItIsNoFallback) {
  Config config = onlyShm(false);
  config.shmEngine = ShmEngine::kRing;
  SurvivingSide side(config, "any", kBytes, {"private"});
  EXPECT_EQ(side.peer.route().privateEngine, "ring");
  EXPECT_OK(side.move(Direction::kPut));
  EXPECT_EQ(metricOf(*side.context, kFallbacks), 0);
}

TEST_F(CmaRefused, WithItRequiredNobodyConnects) {
  Config config = onlyShm(false);
  config.shmEngine = ShmEngine::kCma;
  auto context = MUST(Context::create({config, {}, ""}));
  PeerProcess other({"any", "undumpable"});
  other.tell(context->ticket());
  const std::string answer = other.line();
  EXPECT_TRUE(answer.starts_with("refused")) << answer;
  EXPECT_NE(answer.find("PEERLANE_SHM_ENGINE=cma"), std::string::npos) << answer;
  EXPECT_TRUE(soon([&] { return context->peers().empty(); }));
}

// --- Other users. Only an administrator can become one, so for others these say nothing. ---

TEST(OtherUser, MayMeetAnAdministratorAndTakesTheRing) {
  if (::geteuid() != 0) return;
  SurvivingSide side(onlyShm(false), "any", kBytes, {"user=" + std::to_string(kNobody), "private"});
  const std::string route = side.other->ask("route");
  EXPECT_NE(route.find("private ring"), std::string::npos) << route;
  EXPECT_NE(route.find("fallbacks 1"), std::string::npos) << route;
  std::memset(side.memory->data(), 9, kBytes);
  EXPECT_EQ(side.other->ask("get"), "OK");
  EXPECT_EQ(side.other->ask("look"), "9");
  EXPECT_EQ(side.other->ask("fill 8"), "filled");
  EXPECT_EQ(side.other->ask("put"), "OK");
  EXPECT_TRUE(isFilledWith(side.memory->data(), kBytes, 8));
}

TEST(OtherUser, IsRefusedThoughItKnowsTheSecret) {
  if (::geteuid() != 0) return;
  PeerProcess other({"any", "user=" + std::to_string(kNobody)});
  ASSERT_EQ(::seteuid(kStranger), 0);
  {
    auto context = MUST(Context::create({onlyShm(false), {}, ""}));
    other.tell(context->ticket());
    const std::string answer = other.line();
    EXPECT_TRUE(answer.starts_with("refused PermissionDenied")) << answer;
    EXPECT_NE(answer.find("another user"), std::string::npos) << answer;
    EXPECT_TRUE(context->peers().empty());
    // That was the other side's own caution; this one refuses as well.
    Status said;
    std::thread stranger([&] {
      // Not by the C library, which would change every thread.
      EXPECT_EQ(::syscall(SYS_setresuid, -1, 0, -1), 0);
      EXPECT_EQ(::syscall(SYS_setresuid, -1, kNobody, -1), 0);
      Intruder intruder(context->addresses().front());
      said = intruder.refusal(MUST(Secret::fromText(context->secretText())));
      EXPECT_TRUE(intruder.seesTheEnd());
    });
    stranger.join();
    EXPECT_EQ(said.code(), Code::kPermissionDenied) << said.toString();
    EXPECT_NE(said.message().find("belongs to another user"), std::string::npos) << said.toString();
  }
  ASSERT_EQ(::seteuid(0), 0);
  ::prctl(PR_SET_DUMPABLE, 1);
}

}  // namespace
}  // namespace peerlane
