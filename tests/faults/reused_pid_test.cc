// SPDX-License-Identifier: Apache-2.0
//
// cma names the peer by its pid, and a pid may come to mean another process. The agent is given a
// peer that died and whose pid a stranger has, with other bytes at the same address: it moves none.
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <cstring>

#include "peerlane/os/file.h"
#include "peerlane/transport/shm/cma_agent.h"
#include "tests/channel/context_pair.h"

namespace {

// Called between two reads of another process's memory, with what the first one has returned.
void (*between)(ssize_t) = nullptr;

}  // namespace

extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long locals,
                                    const iovec* remote, unsigned long remotes,
                                    unsigned long flags) noexcept {
  const ssize_t moved = ::syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
  const int error = errno;
  if (between != nullptr) between(moved);
  errno = error;
  return moved;
}

namespace peerlane {
namespace {

constexpr size_t kBytes = 64 * 1024;

void writeAll(const char* path, const std::string& text) {
  FILE* file = std::fopen(path, "w");
  ASSERT_NE(file, nullptr) << path;
  EXPECT_EQ(std::fwrite(text.data(), 1, text.size(), file), text.size());
  EXPECT_EQ(std::fclose(file), 0) << path;
}

// A forked child whose bytes at `memory` are `value`; it waits to be killed. `pid` 0: any.
pid_t childWith(std::byte* memory, int value, pid_t pid) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  clone_args arguments{};
  arguments.exit_signal = SIGCHLD;
  if (pid != 0) {
    arguments.set_tid = std::bit_cast<uint64_t>(&pid);
    arguments.set_tid_size = 1;
  }
  const auto child = static_cast<pid_t>(::syscall(SYS_clone3, &arguments, sizeof arguments));
  if (child == 0) {
    ::alarm(60);
    for (size_t i = 0; i < kBytes; ++i) memory[i] = static_cast<std::byte>(value);
    (void)!::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  EXPECT_TRUE(child < 0 || ::read(ready[0], &byte, 1) == 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

void endOf(pid_t child) {
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

// Few bytes go another way than many.
constexpr size_t kSizes[] = {64, kBytes};

struct OneCopy {
  OneCopy(Agent& agent, Verb verb, std::byte* local, std::byte* there, size_t bytes = kBytes)
      : mailbox_(agent) {
    remote_.linkKey = std::bit_cast<uint64_t>(there);
    remote_.grant.bytes = kBytes;
    remote_.engine = "cma";
    piece_ = {local, &remote_, 0, bytes};
    MailboxEntry* entry = mailbox_.claim();
    entry->verb = verb;
    entry->pieceCount = 1;
    entry->pieces = &piece_;
    mailbox_.ring();
    while (!mailbox_.idle()) mailbox_.serve();
  }
  Code code() const { return mailbox_.code(); }

 private:
  RemoteMemory remote_;
  Piece piece_;
  Mailbox mailbox_;
};

// Runs in a process that may choose pids. 0: as it should be; else the number of what was not.
int tryWithAReusedPid() {
  auto* memory = static_cast<std::byte*>(
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::vector<std::byte> local(kBytes);
  const pid_t peer = childWith(memory, 11, 0);
  if (peer <= 0) return 1;
  std::vector<std::byte> nonce(32, std::byte{11});
  auto handle = ProcessHandle::open(peer);
  if (!handle.isOk()) return 2;
  auto agent = CmaAgent::probe(std::move(*handle), std::bit_cast<uint64_t>(memory), nonce);
  if (!agent.isOk()) return 3;
  if (OneCopy(**agent, Verb::kGet, local.data(), memory).code() != Code::kOk) return 4;
  if (local.front() != std::byte{11} || local.back() != std::byte{11}) return 5;

  endOf(peer);
  const pid_t stranger = childWith(memory, 22, peer);
  if (stranger != peer) return 6;
  // The danger is there: the pid leads to the stranger's bytes.
  std::vector<std::byte> seen(kBytes);
  const IoSlice to{seen.data(), kBytes};
  const IoSlice from{memory, kBytes};
  const auto read = readProcess(stranger, {&to, 1}, {&from, 1});
  if (!read.isOk() || seen.front() != std::byte{22}) return 7;

  std::fill(local.begin(), local.end(), std::byte{33});
  for (const size_t bytes : kSizes)
    if (OneCopy(**agent, Verb::kGet, local.data(), memory, bytes).code() != Code::kPeerLost)
      return 8;
  for (const std::byte each : local)
    if (each != std::byte{33}) return 9;
  for (const size_t bytes : kSizes)
    if (OneCopy(**agent, Verb::kPut, local.data(), memory, bytes).code() != Code::kPeerLost)
      return 10;
  if (!readProcess(stranger, {&to, 1}, {&from, 1}).isOk() || seen.front() != std::byte{22} ||
      seen.back() != std::byte{22})
    return 11;
  // Nor is the stranger taken for the peer at the next meeting.
  auto again = ProcessHandle::open(stranger);
  if (!again.isOk()) return 12;
  if (CmaAgent::probe(std::move(*again), std::bit_cast<uint64_t>(memory), nonce).status().code() !=
      Code::kCorrupt)
    return 13;
  endOf(stranger);
  return 0;
}

// A process that calls exec keeps its pid, and its end is not to be seen at a pidfd.
TEST(ReusedPid, OfTheSameProcessWithAnotherProgramIsNoPeerEither) {
  auto* memory = static_cast<std::byte*>(
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::vector<std::byte> local(kBytes);
  ::signal(SIGUSR1, [](int) { ::execl("/bin/sleep", "sleep", "60", nullptr); });
  const pid_t peer = childWith(memory, 11, 0);
  ::signal(SIGUSR1, SIG_DFL);
  ASSERT_GT(peer, 0);
  const std::vector<std::byte> nonce(32, std::byte{11});
  auto agent = MUST(
      CmaAgent::probe(MUST(ProcessHandle::open(peer)), std::bit_cast<uint64_t>(memory), nonce));
  for (const size_t bytes : kSizes)
    for (const Verb verb : {Verb::kGet, Verb::kPut})
      EXPECT_EQ(OneCopy(*agent, verb, local.data(), memory, bytes).code(), Code::kOk);
  ASSERT_EQ(::kill(peer, SIGUSR1), 0);
  const std::string path = "/proc/" + std::to_string(peer) + "/comm";
  std::string name;
  while (name != "sleep\n") name = MUST(readWhole(path, 64));
  for (const size_t bytes : kSizes)
    for (const Verb verb : {Verb::kGet, Verb::kPut})
      EXPECT_EQ(OneCopy(*agent, verb, local.data(), memory, bytes).code(), Code::kPeerLost);
  endOf(peer);
}

// Of a peer that calls exec between two calls of this side.
struct ExecBetweenReads {
  static constexpr ssize_t kNonceBytes = 32;
  static inline std::byte* memory = nullptr;
  static inline std::byte* hole = nullptr;
  static inline pid_t peer = 0;
  static inline int done[2] = {-1, -1};

  // In the peer: another nonce, or none, and bytes where nothing was before.
  static void becomeAnother(int) {
    std::memset(memory, 0, kNonceBytes);
    (void)::mmap(hole, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0);
    std::memset(hole, 22, kBytes);
    (void)!::write(done[1], "x", 1);
  }
  // Here: a read has come as far as the nonce.
  static void exec(ssize_t moved) {
    if (moved != kNonceBytes) return;
    between = nullptr;
    char byte = 0;
    EXPECT_EQ(::kill(peer, SIGUSR1), 0);
    EXPECT_EQ(::read(done[0], &byte, 1), 1);
  }
};

TEST(ReusedPid, GivesNoBytesOfTheNextProgramWhereTheFirstHadNoMemory) {
  using Exec = ExecBetweenReads;
  const auto map = [] {
    return static_cast<std::byte*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  };
  Exec::memory = map();
  Exec::hole = map();
  ASSERT_EQ(::munmap(Exec::hole, kBytes), 0);
  ASSERT_EQ(::pipe(Exec::done), 0);
  ::signal(SIGUSR1, &Exec::becomeAnother);
  Exec::peer = childWith(Exec::memory, 11, 0);
  ::signal(SIGUSR1, SIG_DFL);
  ASSERT_GT(Exec::peer, 0);
  const std::vector<std::byte> nonce(Exec::kNonceBytes, std::byte{11});
  auto agent = MUST(CmaAgent::probe(MUST(ProcessHandle::open(Exec::peer)),
                                    std::bit_cast<uint64_t>(Exec::memory), nonce));
  std::vector<std::byte> local(kBytes);
  // Where there is nothing, the reason is said.
  EXPECT_EQ(OneCopy(*agent, Verb::kGet, local.data(), Exec::hole).code(), Code::kRevoked);
  between = &Exec::exec;
  // Its bytes may have come, but they do not pass for the peer's.
  EXPECT_EQ(OneCopy(*agent, Verb::kGet, local.data(), Exec::hole).code(), Code::kPeerLost);
  EXPECT_EQ(between, nullptr) << "it has become another";
  endOf(Exec::peer);
  ::close(Exec::done[0]);
  ::close(Exec::done[1]);
}

// The other side is well: this side's memory cannot be written.
TEST(ReusedPid, SaysThatTheMemoryOfThisSideIsAtFault) {
  auto* memory = static_cast<std::byte*>(
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const pid_t peer = childWith(memory, 11, 0);
  ASSERT_GT(peer, 0);
  const std::vector<std::byte> nonce(32, std::byte{11});
  auto agent = MUST(
      CmaAgent::probe(MUST(ProcessHandle::open(peer)), std::bit_cast<uint64_t>(memory), nonce));
  auto* sealed = static_cast<std::byte*>(
      ::mmap(nullptr, kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  EXPECT_EQ(OneCopy(*agent, Verb::kGet, sealed, memory).code(), Code::kRevoked);
  endOf(peer);
}

TEST(ReusedPid, GivesNoBytesOfAnotherProcess) {
  // Choosing pids takes an administrator, or a pid namespace of one's own.
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  const pid_t outer = ::fork();
  if (outer == 0) {
    const int kinds = user == 0 ? CLONE_NEWPID : CLONE_NEWUSER | CLONE_NEWPID;
    if (::unshare(kinds) != 0) ::_exit(100);
    if (user != 0) {
      writeAll("/proc/self/setgroups", "deny");
      writeAll("/proc/self/uid_map", "0 " + std::to_string(user) + " 1");
      writeAll("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
    }
    const pid_t inner = ::fork();
    if (inner == 0) ::_exit(tryWithAReusedPid());
    int status = 0;
    ::waitpid(inner, &status, 0);
    ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 101);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(outer, &status, 0), outer);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  ASSERT_NE(WEXITSTATUS(status), 100) << "no pid namespace can be made here";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "the number of the step that was wrong";
}

}  // namespace
}  // namespace peerlane
