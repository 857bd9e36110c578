// SPDX-License-Identifier: Apache-2.0
//
// cudaMalloc memory, which travels by a legacy IPC handle: into other PID namespaces, where such a
// handle may not lead anywhere, and into contexts with several GPUs, each of which opens its own.
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/gpu/two_processes.h"

namespace peerlane::gputest {
namespace {

constexpr size_t kBytes = size_t{3} << 20;

int waitFor(pid_t child) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

constexpr int kNamespaces = CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWNS;

// A /proc of the namespace that this is the first process of: CUDA does not start without one.
bool mountProc() {
  return mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0;
}

// Why sides cannot have namespaces of their own here, as `unshare --pid --ipc --fork --mount-proc`
// makes them; empty: they can.
std::string whyNoNamespaces() {
  const pid_t maker = fork();
  if (maker == 0) {
    if (unshare(kNamespaces) != 0) _exit(errno);
    const pid_t inner = fork();
    if (inner == 0) _exit(mountProc() ? 0 : errno);
    _exit(inner < 0 ? errno : waitFor(inner));
  }
  const int error = waitFor(maker);
  return error == 0
             ? ""
             : std::string("no PID namespaces with a /proc of their own: ") + std::strerror(error);
}

#define PEERLANE_NEEDS_NAMESPACES() \
  if (const std::string why = whyNoNamespaces(); !why.empty()) GTEST_SKIP() << why

// Whether GPUs in software look for processes in the /proc around the namespaces, so that they find
// each other, or each in its own. Those in hardware ask nobody.
enum class Handles { kLeadThere, kLeadNowhere };

// The same side, as the first process of a PID namespace. The one between the two makes the
// namespace: who has made one cannot start a thread of its own any more, which the leak sanitizer
// wants at the end of a side.
SideFunction inOwnNamespace(SideFunction side, Handles handles) {
  return [side = std::move(side), handles](const Line& line) {
    std::fflush(nullptr);
    const pid_t maker = fork();
    if (maker == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (unshare(kNamespaces) != 0) die("unshare", Status(Code::kSystem, std::strerror(errno)));
      const pid_t inner = fork();
      if (inner != 0) std::_Exit(waitFor(inner));
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int around = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);
      if (!mountProc()) die("mount", Status(Code::kSystem, std::strerror(errno)));
      if (handles == Handles::kLeadThere)
        setenv("SOFTWARE_GPU_PROC", ("/proc/self/fd/" + std::to_string(around)).c_str(), 1);
      side(line);
      std::fflush(nullptr);
      std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    EXPECT_EQ(waitFor(maker), 0);
  };
}

// Of all processes of a test: on a busy machine the trial of a handle may get no answer in its
// time. Then the memory is staged for that reason, and nothing was said about the handle.
std::atomic<bool>& isUnanswered() {
  static auto* const shared = [] {
    void* const made = mmap(nullptr, sizeof(std::atomic<bool>), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) die("mmap", Status(Code::kSystem, std::strerror(errno)));
    return new (made) std::atomic<bool>(false);
  }();
  return *shared;
}

// Until the trials were answered, with fresh sides each time.
bool runUntilAnswered(const SideFunction& first, const SideFunction& second) {
  for (int i = 0; i < 5; ++i) {
    isUnanswered() = false;
    if (!runTwo(first, second)) return false;
    if (!isUnanswered()) return true;
  }
  return false;
}

enum class Expected { kStraight, kStaged, kEither };

// Descriptors and counters work in any case; cudaMalloc memory goes straight, or is staged with the
// reason, in the route as well.
void exchangeAll(int index, const Line& line, Expected expected, const std::string& reason) {
  const Meeting meeting(index, line);
  const Region vmm = makeRegion(*meeting.context, meeting.device, Memory::kVmm, kBytes);
  const Region pool = makeRegion(*meeting.context, meeting.device, Memory::kPool, kBytes);
  const Region legacy = makeRegion(*meeting.context, meeting.device, Memory::kMalloc, kBytes);
  const Region target = makeRegion(*meeting.context, meeting.device, Memory::kMalloc, kBytes);
  const Signal signal = must(Signal::create(meeting.peer, 0), "signal");
  for (const Region* region : {&vmm, &pool, &legacy})
    fill(region->data(), kBytes, static_cast<uint32_t>(5 + index));
  const auto works = [&](const RemoteRegion& remote) {
    clear(target.data(), kBytes, 0);
    const Block block{&target, 0, &remote, 0, kBytes};
    must(must(get(meeting.peer, {&block, 1}), "get").wait(kPatience), "wait");
    EXPECT_EQ(wrongWords(target.data(), kBytes, static_cast<uint32_t>(6 - index)), 0u);
  };
  {
    works(exchange(meeting.peer, vmm, line));
    works(exchange(meeting.peer, pool, line));
    must(addSignal(meeting.peer, 0), "addSignal");
    must(signal.wait(1, kPatience), "signal");
    const RemoteRegion remote = exchange(meeting.peer, legacy, line);
    must(remote.prepare(kPatience), "prepare");
    const std::string way = remote.description();
    const bool isStraight = way == "cuda";
    const auto says = [&](const char* part) { return way.find(part) != std::string::npos; };
    // A peer that had no time to make a number sends none.
    const bool isTold = !says("the GPU was too busy") && !says("sent none to try");
    if (expected != Expected::kEither) {
      EXPECT_TRUE(!isTold || isStraight == (expected == Expected::kStraight)) << way;
      if (!isTold) isUnanswered() = true;
    }
    works(remote);
    if (!isStraight) {
      EXPECT_NE(way.find("staged through host memory"), std::string::npos) << way;
      for (const std::string& text : {way, meeting.peer.route().toString()}) {
        EXPECT_NE(text.find("legacy CUDA IPC handles do not cross PID namespaces here"),
                  std::string::npos)
            << text;
        EXPECT_TRUE(!isTold || text.find(reason) != std::string::npos) << text;
      }
    }
  }
  line.meet();
}

// The route alone may be asked for: nothing is staged in silence.
TEST(LegacyMemory, IsRefusedUnderStrictWhereItWouldBeStaged) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs in software, whose handles fail when told to";
  PEERLANE_NEEDS_NAMESPACES();
  const auto strict = [](int index) {
    return [index](const Line& line) {
      setenv("PEERLANE_STRICT", "1", 1);
      if (index == 1) setenv("SOFTWARE_GPU_IPC", "refused", 1);
      const Side side(index, line, kBytes, Memory::kMalloc);
      if (index == 1) {
        const Block all = side.block(0, kBytes);
        const Status status = put(side.peer, {&all, 1}).status();
        EXPECT_EQ(status.code(), Code::kNotSupported) << status.toString();
        for (const char* part : {"PEERLANE_STRICT", "do not cross PID namespaces"})
          EXPECT_NE(status.message().find(part), std::string_view::npos) << status.toString();
      }
      line.meet();
    };
  };
  EXPECT_TRUE(runTwo(strict(0), inOwnNamespace(strict(1), Handles::kLeadThere)));
}

SideFunction side(int index, Expected expected, const char* ipc = nullptr,
                  const std::string& reason = "") {
  return [=](const Line& line) {
    if (ipc != nullptr) setenv("SOFTWARE_GPU_IPC", ipc, 1);
    exchangeAll(index, line, expected, reason);
  };
}

TEST(LegacyMemory, IsReachedInOnePidNamespaceWithoutATrial) {
  PEERLANE_NEEDS_GPUS(1);
  EXPECT_TRUE(runUntilAnswered(side(0, Expected::kStraight), side(1, Expected::kStraight)));
}

TEST(LegacyMemory, IsReachedInAnotherPidNamespaceWhereTheDriverAllowsIt) {
  PEERLANE_NEEDS_GPUS(1);
  PEERLANE_NEEDS_NAMESPACES();
  const Expected expected = inSoftware() ? Expected::kStraight : Expected::kEither;
  EXPECT_TRUE(
      runUntilAnswered(side(0, expected), inOwnNamespace(side(1, expected), Handles::kLeadThere)));
  EXPECT_TRUE(
      runUntilAnswered(inOwnNamespace(side(0, expected), Handles::kLeadThere), side(1, expected)));
}

TEST(LegacyMemory, IsStagedInAnotherPidNamespaceWhereItsHandlesLeadNowhere) {
  PEERLANE_NEEDS_GPUS(1);
  PEERLANE_NEEDS_NAMESPACES();
  const Expected expected = inSoftware() ? Expected::kStaged : Expected::kEither;
  EXPECT_TRUE(runUntilAnswered(side(0, expected),
                               inOwnNamespace(side(1, expected), Handles::kLeadNowhere)));
}

// The side that fails is told to by GPUs in software; the other one is not concerned.
TEST(LegacyMemory, IsStagedInAnotherPidNamespaceWhereItsHandlesFail) {
  PEERLANE_NEEDS_GPUS(1);
  if (!inSoftware()) GTEST_SKIP() << "needs GPUs in software, whose handles fail when told to";
  PEERLANE_NEEDS_NAMESPACES();
  EXPECT_TRUE(
      runUntilAnswered(side(0, Expected::kStraight),
                       inOwnNamespace(side(1, Expected::kStaged, "refused", "cudaIpcOpenMemHandle"),
                                      Handles::kLeadThere)));
  EXPECT_TRUE(runUntilAnswered(side(0, Expected::kStaged, "wrong", "led to other memory"),
                               inOwnNamespace(side(1, Expected::kStraight), Handles::kLeadThere)));
}

// A context with two GPUs reads and writes from both, whichever the peer's memory is on, and in
// whichever order they are named; posted before it is imported, in a plan, and by list.
TEST(LegacyMemory, IsReachedFromEachGpuOfAContext) {
  PEERLANE_NEEDS_GPUS(2);
  for (const int owner : {0, 1})
    for (const bool swapped : {false, true})
      EXPECT_TRUE(runTwo(
          [owner](const Line& line) {
            const Device device = gpu(owner);
            auto context = makeContext({device});
            const Peer peer = meetPeer(*context, line, false);
            const Region region = makeRegion(*context, device, Memory::kMalloc, kBytes);
            fill(region.data(), kBytes, 9);
            (void)exchange(peer, region, line);
            line.meet();
            EXPECT_EQ(wrongWords(region.data(), kBytes, 31), 0u);
            must(context->unregister(region, kPatience), "unregister");
            line.meet();
          },
          [swapped](const Line& line) {
            const Device one = gpu(swapped ? 1 : 0), other = gpu(swapped ? 0 : 1);
            auto context = makeContext({one, other});
            const Peer peer = meetPeer(*context, line, true);
            const std::vector<Region> locals{makeRegion(*context, one, Memory::kVmm, kBytes),
                                             makeRegion(*context, other, Memory::kVmm, kBytes)};
            {
              const RemoteRegion remote = exchange(peer, locals[0], line);
              for (const size_t n : {size_t{1}, size_t{0}}) {
                mustCuda(cudaSetDevice(locals[n].device().index), "cudaSetDevice");
                const cudaStream_t stream = makeStream();
                const Block block{&locals[n], 0, &remote, 0, kBytes};
                const auto check = [&](const char* what) {
                  EXPECT_EQ(wrongWords(locals[n].data(), kBytes, 9), 0u) << what << n;
                  clear(locals[n].data(), kBytes, 0);
                };
                clear(locals[n].data(), kBytes, 0);
                must(must(get(peer, {&block, 1}, {.deviceStream = DeviceStream::cuda(stream)}),
                          "get")
                         .wait(kPatience),
                     "wait");
                check("on a stream, at first before it is imported ");
                for (const Engine engine : {Engine::kCe, Engine::kSm}) {
                  must(must(get(peer, {&block, 1}, {.engine = engine}), "get").wait(kPatience),
                       "wait");
                  check("alone ");
                }
                auto plan = must(Plan::create(peer, Direction::kGet, {&block, 1}), "plan");
                must(must(plan.post(DeviceStream::cuda(stream)), "post").wait(kPatience), "wait");
                check("by a plan ");
              }
              // Half from each.
              for (const size_t n : {size_t{0}, size_t{1}}) {
                mustCuda(cudaSetDevice(locals[n].device().index), "cudaSetDevice");
                fill(locals[n].data(), kBytes, 31);
                const Block half{&locals[n], n * kBytes / 2, &remote, n * kBytes / 2, kBytes / 2};
                must(must(put(peer, {&half, 1}), "put").wait(kPatience), "wait");
              }
            }
            line.meet();
            line.meet();
          }));
}

}  // namespace
}  // namespace peerlane::gputest
