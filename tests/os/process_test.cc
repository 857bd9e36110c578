// SPDX-License-Identifier: Apache-2.0
#include "peerlane/os/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "peerlane/os/fd.h"
#include "tests/os/few_descriptors.h"
#include "tests/os/open_files.h"

namespace peerlane {
namespace {

constexpr size_t kPage = 4096;

// A forked copy of this process that waits: our addresses are mapped there, too.
class ForkedChild {
 public:
  // `prepare` runs in the child first; it may change memory.
  template <typename Prepare>
  explicit ForkedChild(Prepare prepare) {
    int ready[2];
    if (::pipe(ready) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      prepare();
      if (::write(ready[1], "x", 1) != 1) ::_exit(1);
      while (true) ::pause();
    }
    Fd reader(ready[0]);
    Fd writer(ready[1]);
    writer.reset();
    char byte = 0;
    EXPECT_EQ(::read(reader.get(), &byte, 1), 1);
  }
  ~ForkedChild() { end(); }
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;
  void end() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
};

IoSlice slice(void* base, size_t bytes) {
  return IoSlice{base, bytes};
}

TEST(ProcessMemory, ReadsAcrossDifferentCuts) {
  std::vector<char> source(10'000);
  ForkedChild child([&] {
    for (size_t i = 0; i < source.size(); ++i) source[i] = static_cast<char>(i % 251);
  });
  std::vector<char> target(source.size());
  IoSlice local[] = {slice(target.data(), 3), slice(target.data() + 3, target.size() - 3)};
  IoSlice remote[] = {slice(source.data(), 7'000), slice(source.data() + 7'000, 3'000)};
  auto moved = readProcess(child.pid(), local, remote);
  ASSERT_TRUE(moved.isOk()) << moved.status().toString();
  ASSERT_EQ(*moved, source.size());
  for (size_t i = 0; i < target.size(); ++i) ASSERT_EQ(target[i], static_cast<char>(i % 251)) << i;
  EXPECT_EQ(source[5], 0) << "the child's memory is its own";
}

TEST(ProcessMemory, WritesIntoTheOther) {
  std::vector<char> there(100);
  ForkedChild child([] {});
  std::string text = "written from outside";
  IoSlice local[] = {slice(text.data(), text.size())};
  IoSlice remote[] = {slice(there.data() + 10, text.size())};
  ASSERT_EQ(writeProcess(child.pid(), local, remote).value(), text.size());
  std::vector<char> back(100);
  IoSlice all[] = {slice(back.data(), 100)};
  IoSlice source[] = {slice(there.data(), 100)};
  ASSERT_EQ(readProcess(child.pid(), all, source).value(), 100u);
  EXPECT_EQ(std::string(back.data() + 10, text.size()), text);
  EXPECT_EQ(back[9], 0);
}

TEST(ProcessMemory, StopsAtTheFirstMissingPage) {
  auto* area = static_cast<char*>(
      ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(area, MAP_FAILED);
  ForkedChild child([&] { ::munmap(area + kPage, kPage); });
  std::vector<char> target(2 * kPage);
  IoSlice local[] = {slice(target.data(), target.size())};
  IoSlice remote[] = {slice(area, 2 * kPage)};
  EXPECT_EQ(readProcess(child.pid(), local, remote).value(), kPage);
  IoSlice missing[] = {slice(area + kPage, kPage)};
  auto fault = readProcess(child.pid(), local, missing);
  EXPECT_EQ(fault.status().code(), Code::kInvalidArgument);
  EXPECT_NE(fault.status().message().find("the remote memory"), std::string_view::npos);
  ::munmap(area, 2 * kPage);
}

TEST(ProcessMemory, FaultsTellTheSide) {
  std::vector<char> buffer(kPage);
  ForkedChild child([] {});
  auto* readOnly =
      static_cast<char*>(::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(readOnly, MAP_FAILED);
  IoSlice good[] = {slice(buffer.data(), 100)};
  IoSlice bad[] = {slice(readOnly, 100)};
  auto read = readProcess(child.pid(), bad, good);
  EXPECT_EQ(read.status().code(), Code::kInvalidArgument) << read.status().toString();
  EXPECT_NE(read.status().message().find("the local memory"), std::string_view::npos);
  auto write = writeProcess(child.pid(), good, bad);
  EXPECT_EQ(write.status().code(), Code::kInvalidArgument);
  EXPECT_NE(write.status().message().find("the remote memory"), std::string_view::npos);
  ::munmap(readOnly, kPage);
}

TEST(ProcessMemory, ManySlicesUpToTheLimit) {
  std::vector<char> source(kMaxIoSlices + 1, 's');
  std::vector<char> target(source.size());
  ForkedChild child([] {});
  std::vector<IoSlice> local;
  std::vector<IoSlice> remote;
  for (size_t i = 0; i < kMaxIoSlices; ++i) {
    local.push_back(slice(&target[i], 1));
    remote.push_back(slice(&source[i], 1));
  }
  EXPECT_EQ(readProcess(child.pid(), local, remote).value(), kMaxIoSlices);
  EXPECT_EQ(static_cast<size_t>(std::count(target.begin(), target.end(), 's')), kMaxIoSlices);
  local.push_back(slice(&target[0], 1));
  EXPECT_EQ(readProcess(child.pid(), local, remote).status().code(), Code::kInvalidArgument);
}

TEST(ProcessMemory, EndedProcessIsLost) {
  char byte = 0;
  IoSlice one[] = {slice(&byte, 1)};
  ForkedChild child([] {});
  pid_t pid = child.pid();
  EXPECT_TRUE(readProcess(pid, one, one).isOk());
  child.end();
  EXPECT_EQ(readProcess(pid, one, one).status().code(), Code::kPeerLost);
}

// The child drops its rights; the grandchild-free way to meet a refusal also as root.
TEST(ProcessMemory, ForeignMemoryIsRefused) {
  char byte = 1;
  IoSlice one[] = {slice(&byte, 1)};
  ForkedChild target([] { ::prctl(PR_SET_DUMPABLE, 0); });
  pid_t reader = ::fork();
  ASSERT_GE(reader, 0);
  if (reader == 0) {
    if (::getuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(2);
    ::_exit(readProcess(target.pid(), one, one).status().code() == Code::kPermissionDenied ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(reader, &status, 0), reader);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ProcessHandle, KnowsWhenTheProcessEnds) {
  ForkedChild child([] {});
  auto handle = ProcessHandle::open(child.pid());
  ASSERT_TRUE(handle.isOk());
  EXPECT_EQ(handle->pid(), child.pid());
  EXPECT_TRUE(handle->alive());
  ASSERT_EQ(::kill(child.pid(), SIGKILL), 0);
  pollfd entry{handle->fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&entry, 1, 20'000), 1);
  EXPECT_FALSE(handle->alive()) << "a zombie is not alive";
  pid_t pid = child.pid();
  child.end();
  EXPECT_FALSE(handle->alive());
  EXPECT_EQ(ProcessHandle::open(pid).status().code(), Code::kPeerLost);
}

TEST(ProcessHandle, StoppedProcessIsAlive) {
  ForkedChild child([] {});
  auto handle = ProcessHandle::open(child.pid()).value();
  ASSERT_EQ(::kill(child.pid(), SIGSTOP), 0);
  ASSERT_EQ(::waitpid(child.pid(), nullptr, WUNTRACED), child.pid());
  EXPECT_TRUE(handle.alive());
}

TEST(ProcessHandle, RefusesWhatIsNoProcess) {
  EXPECT_EQ(ProcessHandle::open(0).status().code(), Code::kPeerLost);
  EXPECT_EQ(ProcessHandle::open(-5).status().code(), Code::kPeerLost);
}

TEST(AddressSpace, EndsWithTheProcessOrItsProgram) {
  for (const bool execs : {false, true}) {
    ForkedChild child(
        [] { ::signal(SIGUSR1, [](int) { ::execl("/bin/sleep", "sleep", "60", nullptr); }); });
    const auto process = ProcessHandle::open(child.pid()).value();
    const auto memory = AddressSpace::open(child.pid());
    ASSERT_TRUE(memory.isOk()) << memory.status().toString();
    EXPECT_FALSE(memory->hasEnded());
    ASSERT_EQ(::kill(child.pid(), execs ? SIGUSR1 : SIGKILL), 0);
    for (int i = 0; i < 20'000 && !memory->hasEnded(); ++i) ::usleep(1000);
    EXPECT_TRUE(memory->hasEnded());
    // A process that ends gives its memory back before it can be waited for.
    pollfd ended{process.fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&ended, 1, execs ? 0 : 20'000), execs ? 0 : 1);
  }
  EXPECT_EQ(AddressSpace::open(0).status().code(), Code::kPeerLost);
}

TEST(AddressSpace, MovesFewBytesOfOneProgramAlone) {
  static uint64_t word = 0;
  word = 5;
  ForkedChild child(
      [] { ::signal(SIGUSR1, [](int) { ::execl("/bin/sleep", "sleep", "60", nullptr); }); });
  const auto memory = AddressSpace::openForWriting(child.pid());
  const auto onlyRead = AddressSpace::open(child.pid());
  ASSERT_TRUE(memory.isOk() && onlyRead.isOk()) << memory.status().toString();
  const uint64_t address = reinterpret_cast<uintptr_t>(&word);
  uint64_t value = 0;
  const auto bytes = std::as_writable_bytes(std::span(&value, 1));
  EXPECT_EQ(memory->read(address, bytes), sizeof value);
  EXPECT_EQ(value, 5u);
  value = 6;
  EXPECT_EQ(memory->write(address, bytes), sizeof value);
  EXPECT_EQ(word, 5u);  // it is the child's
  value = 0;
  EXPECT_EQ(onlyRead->read(address, bytes), sizeof value);
  EXPECT_EQ(value, 6u);
  EXPECT_EQ(onlyRead->write(address, bytes), 0u);
  EXPECT_EQ(memory->read(16, bytes), 0u);
  EXPECT_EQ(memory->write(16, bytes), 0u);
  ASSERT_EQ(::kill(child.pid(), SIGUSR1), 0);
  for (int i = 0; i < 20'000 && !memory->hasEnded(); ++i) ::usleep(1000);
  // What the program would find at its stack, for one.
  EXPECT_EQ(memory->write(reinterpret_cast<uintptr_t>(&value), bytes), 0u);
  EXPECT_EQ(memory->read(address, bytes), 0u);
}

TEST(Process, RaisesItsLimitOfDescriptors) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const FewDescriptors few(100);
  const uint64_t raised = raiseDescriptorLimit().value();
  rlimit after{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &after), 0);
  EXPECT_EQ(after.rlim_cur, raised);
  EXPECT_EQ(raised, std::min<rlim_t>(before.rlim_max, 1 << 20));
  EXPECT_EQ(after.rlim_max, before.rlim_max);
}

TEST(Process, StartTimesTellProcessesApart) {
  auto mine = processStartTime(::getpid());
  ASSERT_TRUE(mine.isOk());
  EXPECT_EQ(processStartTime(::getpid()).value(), *mine);
  // A name with spaces and parentheses must not shift the fields.
  ForkedChild child([] { ::prctl(PR_SET_NAME, "a) b (c 9 9"); });
  auto theirs = processStartTime(child.pid());
  ASSERT_TRUE(theirs.isOk());
  EXPECT_GE(*theirs, *mine);
  EXPECT_LT(*theirs, *mine + 1'000'000);
  pid_t pid = child.pid();
  child.end();
  EXPECT_EQ(processStartTime(pid).status().code(), Code::kPeerLost);
}

TEST(Process, ForkGenerationChangesInTheChildOnly) {
  uint64_t before = forkGeneration();
  int answer[2];
  ASSERT_EQ(::pipe(answer), 0);
  Fd reader(answer[0]);
  Fd writer(answer[1]);
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pid_t grandchild = ::fork();
    uint64_t seen = forkGeneration();
    if (::write(answer[1], &seen, sizeof seen) != static_cast<ssize_t>(sizeof seen)) ::_exit(1);
    if (grandchild > 0) ::waitpid(grandchild, nullptr, 0);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  uint64_t seen[2] = {};
  ASSERT_EQ(::read(reader.get(), seen, sizeof seen), static_cast<ssize_t>(sizeof seen));
  std::sort(std::begin(seen), std::end(seen));
  EXPECT_EQ(seen[0], before + 1);
  EXPECT_EQ(seen[1], before + 2);
  EXPECT_EQ(forkGeneration(), before);
}

TEST(Process, PtracePermissionIsGivenOrNotNeeded) {
  ForkedChild child([] {});
  EXPECT_TRUE(allowPtraceBy(child.pid()).isOk());
  EXPECT_TRUE(allowPtraceBy(0).isOk());
  auto scope = ptraceScope();
  if (scope) {
    EXPECT_GE(*scope, 0);
    EXPECT_LE(*scope, 3);
    pid_t pid = child.pid();
    child.end();
    EXPECT_EQ(allowPtraceBy(pid).code(), Code::kPeerLost);
  }
}

TEST(Process, RandomBytesDiffer) {
  std::vector<std::byte> first(1000);
  std::vector<std::byte> second(1000);
  ASSERT_TRUE(fillRandom(first).isOk());
  ASSERT_TRUE(fillRandom(second).isOk());
  EXPECT_NE(first, second);
  EXPECT_NE(std::count(first.begin() + 500, first.end(), std::byte{0}), 500);
  EXPECT_TRUE(fillRandom({}).isOk());
}

TEST(Process, ResidentBytesFollowTouchedMemory) {
  constexpr size_t kBytes = 32 << 20;
  uint64_t before = residentBytes().value();
  void* area = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ASSERT_NE(area, MAP_FAILED);
  uint64_t during = residentBytes().value();
  ::munmap(area, kBytes);
  EXPECT_GE(during, before + kBytes / 2);
}

TEST(Process, OpenFilesAreCounted) {
  size_t before = openFileCount().value();
  Fd one = makeEventFd().value();
  Fd two = makeEventFd().value();
  EXPECT_EQ(openFileCount().value(), before + 2);
}

}  // namespace
}  // namespace peerlane
