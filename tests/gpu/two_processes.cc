// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/two_processes.h"

#include <cuda_runtime_api.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "peerlane/memory/gpu_list.h"
#include "peerlane/os/cuda.h"
#include "peerlane/os/cuda_driver.h"
#include "peerlane/os/unix_peer.h"

// A side that ends without destructors still says what the sanitizers have found, and which lines
// it has executed.
#if defined(__SANITIZE_THREAD__)
extern "C" const char* __tsan_default_options() {
  return "halt_on_error=1";
}
#endif
#if defined(__SANITIZE_ADDRESS__)
extern "C" int __lsan_do_recoverable_leak_check();
#endif
// NOLINTNEXTLINE(readability-identifier-naming): gcov's own name
extern "C" __attribute__((weak)) void __gcov_dump();

namespace peerlane::gputest {
namespace {

void transferAll(int fd, char* at, size_t bytes, bool out) {
  while (bytes > 0) {
    const ssize_t moved = out ? ::send(fd, at, bytes, MSG_NOSIGNAL) : ::recv(fd, at, bytes, 0);
    if (moved <= 0) {
      std::fprintf(stderr, "the other side is gone\n");
      std::_Exit(3);
    }
    at += moved;
    bytes -= static_cast<size_t>(moved);
  }
}

pid_t startSide(const SideFunction& side, int fd, const std::vector<int>& others) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int other : others) close(other);
  side(Line(fd));
  std::fflush(nullptr);
  bool failed = ::testing::Test::HasFailure();
#if defined(__SANITIZE_ADDRESS__)
  failed = __lsan_do_recoverable_leak_check() != 0 || failed;
#endif
  if (__gcov_dump != nullptr) __gcov_dump();
  // No destructors of the test program; what the side made is gone already.
  std::_Exit(failed ? 1 : 0);
}

bool finishSide(pid_t child, std::chrono::steady_clock::time_point deadline) {
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "a side did not end in time\n");
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return false;
    }
    usleep(2000);
  }
  if (WIFSIGNALED(status)) std::fprintf(stderr, "a side died of signal %d\n", WTERMSIG(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Ended victims leave the list. False when one was not killed.
bool reap(std::vector<pid_t>& victims) {
  bool good = true;
  std::erase_if(victims, [&](pid_t victim) {
    int status = 0;
    if (waitpid(victim, &status, WNOHANG) == 0) return false;
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) {
      std::fprintf(stderr, "a victim ended by itself, with status %d\n", status);
      good = false;
    }
    return true;
  });
  return good;
}

uint32_t wordAt(size_t index, uint32_t seed) {
  uint64_t x = index * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull + 1;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebull;
  return static_cast<uint32_t>(x >> 32);
}

// Words of one thread: the thread sanitizer would look at each, for seconds, and find nothing.
__attribute__((noinline, no_sanitize("thread"))) void setWords(uint32_t* words, size_t count,
                                                               uint32_t seed) {
  for (size_t i = 0; i < count; ++i) words[i] = wordAt(i, seed);
}
__attribute__((noinline, no_sanitize("thread"))) uint64_t countWrong(const uint32_t* words,
                                                                     size_t count, size_t first,
                                                                     uint32_t seed) {
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) wrong += words[i] != wordAt(i + first, seed);
  return wrong;
}

}  // namespace

void Line::send(const std::string& text) const {
  uint64_t bytes = text.size();
  transferAll(fd_, reinterpret_cast<char*>(&bytes), sizeof(bytes), true);
  transferAll(fd_, const_cast<char*>(text.data()), text.size(), true);
}

std::string Line::receive() const {
  uint64_t bytes = 0;
  transferAll(fd_, reinterpret_cast<char*>(&bytes), sizeof(bytes), false);
  std::string text(bytes, '\0');
  transferAll(fd_, text.data(), text.size(), false);
  return text;
}

void Line::meet() const {
  send("here");
  if (receive() != "here") std::_Exit(4);
}

bool inSoftware() {
  return std::getenv("SOFTWARE_GPUS") != nullptr;
}

int gpuCount() {
  static const int counted = [] {
    const pid_t child = fork();
    if (child == 0) {
      const auto found = cuda::gpus();
      std::_Exit(found.isOk() ? static_cast<int>(found->size()) : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  }();
  return counted;
}

std::string whyNoFabric() {
  static const std::string asked = [] {
    int ends[2];
    if (pipe(ends) != 0) return std::string("no pipe to ask a child by");
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      const std::string why(tryFabricHandles(0).message());
      std::_Exit(write(ends[1], why.data(), why.size()) == static_cast<ssize_t>(why.size()) ? 0
                                                                                            : 1);
    }
    close(ends[1]);
    std::string why;
    char piece[256];
    for (ssize_t got = 0; (got = read(ends[0], piece, sizeof(piece))) > 0;)
      why.append(piece, static_cast<size_t>(got));
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? why : "the child that was asked failed";
  }();
  return asked;
}

// GPUs in software take the sanitizers' time, and share the machine with other tests.
static std::chrono::steady_clock::time_point endOfSides(int seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::seconds(inSoftware() ? 4 * seconds : seconds);
}

bool runTwo(const SideFunction& first, const SideFunction& second, int seconds) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
  const auto deadline = endOfSides(seconds);
  const pid_t one = startSide(first, ends[0], {ends[1]});
  const pid_t two = startSide(second, ends[1], {ends[0]});
  close(ends[0]);
  close(ends[1]);
  const bool good = finishSide(one, deadline);
  return finishSide(two, deadline) && good;
}

bool runOne(const SideFunction& only, int seconds) {
  const auto deadline = endOfSides(seconds);
  return finishSide(startSide(only, -1, {}), deadline);
}

void Victim::kill() const {
  ::kill(pid, SIGKILL);
}

Victim Victims::next() const {
  char byte = 0;
  transferAll(fd_, &byte, 1, true);
  Victim victim;
  pollfd answered{fd_, POLLIN, 0};
  (void)poll(&answered, 1, -1);  // the test program ends sides that hang
  std::vector<Fd> sockets;
  const auto pid = std::as_writable_bytes(std::span(&victim.pid, 1));
  if (must(recvWithFds(fd_, pid, sockets), "a victim") != pid.size() || sockets.size() != 1)
    die("a victim", Status(Code::kInternal, "no pid and socket of it"));
  victim.socket = std::move(sockets.front());
  return victim;
}

bool runWithVictims(const std::function<void(const Victims& victims)>& survivor,
                    const SideFunction& victim, int seconds) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
  const auto deadline = endOfSides(seconds);
  const pid_t side = startSide([&](const Line&) { survivor(Victims(ends[1])); }, -1, {ends[0]});
  const Fd requests(ends[0]);
  close(ends[1]);
  std::vector<pid_t> victims;
  bool good = true;
  while (std::chrono::steady_clock::now() < deadline) {
    good = reap(victims) && good;
    pollfd asked{requests.get(), POLLIN, 0};
    if (poll(&asked, 1, 100) == 0) continue;
    char byte = 0;
    int line[2];
    if (recv(requests.get(), &byte, 1, 0) != 1 || socketpair(AF_UNIX, SOCK_STREAM, 0, line) != 0)
      break;  // it has ended
    victims.push_back(startSide(victim, line[1], {requests.get(), line[0]}));
    (void)sendWithFds(requests.get(), std::as_bytes(std::span(&victims.back(), 1)), {line, 1});
    close(line[0]);
    close(line[1]);
  }
  good = finishSide(side, deadline) && good;
  for (const pid_t left : victims) kill(left, SIGKILL);
  for (; !victims.empty(); usleep(1000)) good = reap(victims) && good;
  return good;
}

Device gpu(int side) {
  int count = 0;
  mustCuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  const int index = side < count ? side : 0;
  mustCuda(cudaSetDevice(index), "cudaSetDevice");
  return {DeviceKind::kCuda, index};
}

std::unique_ptr<Context> makeContext(std::vector<Device> devices) {
  ContextOptions options;
  options.devices = std::move(devices);
  return must(Context::create(std::move(options)), "Context::create");
}

Peer meetPeer(Context& context, const Line& line, bool connects) {
  if (connects) return must(context.connect(line.receive(), kPatience), "connect");
  line.send(context.ticket());
  return must(context.accept(kPatience), "accept");
}

RemoteRegion exchange(const Peer& peer, const Region& region, const Line& line) {
  const auto mine = region.share();
  line.send(std::string(reinterpret_cast<const char*>(mine.data()), mine.size()));
  const std::string theirs = line.receive();
  return must(peer.importRegion(std::as_bytes(std::span(theirs))), "importRegion");
}

cudaStream_t makeStream() {
  cudaStream_t stream = nullptr;
  mustCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  return stream;
}

void mustSync(cudaStream_t stream) {
  mustCuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Meeting::Meeting(int side, const Line& line)
    : index(side),
      device(gpu(side)),
      context(makeContext({device})),
      peer(meetPeer(*context, line, side == 1)),
      stream(makeStream()) {}

Side::Side(int side, const Line& line, size_t bytes, Memory memory)
    : Meeting(side, line),
      region(makeRegion(*context, device, memory, bytes)),
      remote(exchange(peer, region, line)) {}

uint64_t poisonings(const Context& context) {
  const std::string text = context.metrics();
  const std::string name = "\npeerlane_poisonings_total ";
  const size_t at = text.find(name);
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size()));
}

bool stopsShort(const std::atomic<size_t>& made, size_t last) {
  constexpr int kLooks = 3, kLooksAtNothing = 10;
  size_t seen = made;
  for (int equal = 1; equal < (seen == 0 ? kLooksAtNothing : kLooks);) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const size_t now = made;
    equal = now == seen ? equal + 1 : 1;
    seen = now;
  }
  return seen < last;
}

std::chrono::seconds noticedWithin(std::chrono::seconds onHardware) {
  return inSoftware() ? std::chrono::seconds(10) : onHardware;
}

void fill(void* device, size_t bytes, uint32_t seed) {
  std::vector<uint32_t> words((bytes + 3) / 4);
  setWords(words.data(), words.size(), seed);
  mustCuda(cudaMemcpy(device, words.data(), bytes, cudaMemcpyDefault), "cudaMemcpy");
  // From pageable memory the copy may still be on its way, and other streams do not wait for it.
  mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

void freeze(pid_t pid) {
  EXPECT_EQ(::kill(pid, SIGSTOP), 0);
  const auto isRunning = [&](const std::filesystem::path& thread) {
    std::ifstream stat(thread / "stat");
    std::string text;
    std::getline(stat, text);
    return text.find(") T ") == std::string::npos;
  };
  const std::filesystem::directory_iterator end;
  const std::string threads = "/proc/" + std::to_string(pid) + "/task";
  while (std::any_of(std::filesystem::directory_iterator(threads), end, isRunning))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void thaw(pid_t pid) {
  EXPECT_EQ(::kill(pid, SIGCONT), 0);
}

bool hasContext(int gpu) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  mustCuda(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &entry, 7000,
                                            cudaEnableDefault, &found),
           "cudaGetDriverEntryPointByVersion");
  unsigned flags = 0;
  int active = 0;
  mustCuda(reinterpret_cast<CUresult (*)(CUdevice, unsigned*, int*)>(entry)(gpu, &flags, &active),
           "cuDevicePrimaryCtxGetState");
  return active != 0;
}

void clear(void* device, size_t bytes, int value) {
  mustCuda(cudaMemset(device, value, bytes), "cudaMemset");
  mustCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

uint64_t wrongWords(const void* device, size_t bytes, uint32_t seed, size_t skip) {
  std::vector<uint32_t> words(bytes / 4);
  mustCuda(cudaMemcpy(words.data(), device, words.size() * 4, cudaMemcpyDefault), "cudaMemcpy");
  return countWrong(words.data(), words.size(), skip / 4, seed);
}

void die(const char* what, const Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.toString().c_str());
  std::fflush(nullptr);
  std::_Exit(2);
}

void mustCuda(int error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(static_cast<cudaError_t>(error)));
  std::fflush(nullptr);
  std::_Exit(2);
}

}  // namespace peerlane::gputest
