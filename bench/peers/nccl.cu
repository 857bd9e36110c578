// SPDX-License-Identifier: Apache-2.0
//
// The table of `peerlane bench` on GPUs, as NCCL does it: two processes, GPU 0 to GPU 1, one JSON
// object per line. Free of this library. Build and run on a machine with two GPUs (under a minute):
//
//   nvcc -O3 -std=c++17 -o nccl bench/peers/nccl.cu -lnccl
//   ./nccl > bench/results/nccl.jsonl
//
// With the NCCL of the Python package nvidia-nccl-cu12 or -cu13, which has no libnccl.so to link:
//
//   N=$(python3 -c "import nvidia.nccl as n; print(list(n.__path__)[0])")
//   L="-I$N/include -Xlinker $N/lib/libnccl.so.2,-rpath=$N/lib"
//   nvcc -O3 -std=c++17 -o nccl bench/peers/nccl.cu $L
//
// {"peer": "nccl", "row": R, "bytes": B, "blocks": N, "window": W, "gbps": G, "us": T, "wrong": 0}
//
// B is what one message, list or one-way hop carries; T is the median time of one, from the
// sender's call to the receiver's synchronized stream, or of one round trip; G = B / T (of both
// directions together for bidirectional). W messages are enqueued before the receiver waits. Rows:
// version, setup (nth 1 is the first of the process), sendrecv, blocks (one group of N), pingpong,
// pingpong_graph (20 round trips in a graph), bidirectional. Bytes are checked at the receiver once
// per row: wrong ones end in code 1. NVLink SHARP is off: point to point does not use it, and
// setting it up costs time.

#include <cuda_runtime.h>
#include <nccl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <string>
#include <vector>

namespace {

#define CHECK_CUDA(call) checkCuda((call), #call, __LINE__)
#define CHECK_NCCL(call) checkNccl((call), #call, __LINE__)

constexpr uint64_t kKiB = 1 << 10;
constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;
constexpr uint64_t kBufferBytes = 1 << 30;
constexpr uint64_t kMostRowUs = 5'000'000;
constexpr unsigned kMostSeconds = 120;
constexpr uint64_t kStride = 7919;  // from a block's place to the next one's; prime
constexpr int kPerGraph = 20;

void checkCuda(cudaError_t result, const char* call, int line) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "nccl.cu:%d: %s: %s\n", line, call, cudaGetErrorString(result));
  std::_Exit(2);
}

void checkNccl(ncclResult_t result, const char* call, int line) {
  if (result == ncclSuccess) return;
  std::fprintf(stderr, "nccl.cu:%d: %s: %s\n", line, call, ncclGetErrorString(result));
  std::_Exit(2);
}

double nowUs() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// ---- Bytes that are checked ---------------------------------------------------------------------

__host__ __device__ uint32_t wordOf(uint32_t seed, uint64_t index) {
  uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15ull + seed * 0xbf58476d1ce4e5b9ull;
  mixed ^= mixed >> 29;
  return static_cast<uint32_t>(mixed ^ (mixed >> 32));
}

__global__ void fill(uint32_t* words, uint64_t count, uint32_t seed) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step)
    words[i] = wordOf(seed, i);
}

// Block i of the source lies at place (i * stride) % blocks.
__global__ void countWrong(const uint32_t* words, uint64_t blockWords, uint64_t blocks,
                           uint64_t stride, uint32_t seed, unsigned long long* wrong) {
  const uint64_t step = uint64_t{gridDim.x} * blockDim.x;
  const uint64_t total = blockWords * blocks;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < total; i += step) {
    const uint64_t place = i / blockWords * stride % blocks;
    if (words[place * blockWords + i % blockWords] != wordOf(seed, i)) atomicAdd(wrong, 1ull);
  }
}

// ---- Two processes ------------------------------------------------------------------------------

// Shared by both; begun before the fork.
struct Meeting {
  std::atomic<uint64_t> arrived{0};  // both ranks add and acquire
  double begin = 0;                  // rank 0's clock; the clocks are one
  double end[2] = {};
  uint64_t used[2] = {};   // bytes of device memory
  uint64_t wrong[2] = {};  // bytes
};

class Rank {
 public:
  Rank(int rank, int socket, Meeting& meeting) : rank_(rank), socket_(socket), shared_(meeting) {}

  void begin();
  void end();
  void connect(int nth);
  void disconnect() { CHECK_NCCL(ncclCommDestroy(comm_)); }

  void sendReceive(uint64_t bytes, uint64_t window);
  void blocks(uint64_t count, uint64_t bytes);
  void pingPong(uint64_t bytes, bool inGraph);
  void bidirectional(uint64_t bytes);
  uint64_t wrong() const { return wrong_; }

 private:
  enum class Until { kReceiver, kSender, kBoth };

  // Both ranks stand here at the same time.
  void meet() {
    const uint64_t wanted = 2 * ++meetings_;
    shared_.arrived.fetch_add(1, std::memory_order_acq_rel);
    while (shared_.arrived.load(std::memory_order_acquire) < wanted) {
    }
  }
  // From rank 0's first call until the stream of whoever is meant had done it. The same for both.
  double once(const std::function<void()>& body, Until until);
  double run(const std::function<void()>& body, Until until, int warmup, int samples);
  // From 0 to 1.
  void move(uint64_t from, uint64_t to, uint64_t bytes) {
    if (rank_ == 0)
      CHECK_NCCL(ncclSend(source_ + from, bytes, ncclChar, 1, comm_, stream_));
    else
      CHECK_NCCL(ncclRecv(target_ + to, bytes, ncclChar, 0, comm_, stream_));
  }
  void prepare(uint64_t bytes);
  void verify(bool receives, uint64_t blockBytes, uint64_t count, uint64_t stride, int senderRank);
  void print(const char* row, uint64_t bytes, uint64_t count, uint64_t window, double us,
             const std::string& more = "", double directions = 1);
  uint64_t freeBytes() {
    size_t free = 0;
    size_t total = 0;
    CHECK_CUDA(cudaMemGetInfo(&free, &total));
    return free;
  }
  uint32_t seedOf(int rank) const { return 2 * row_ + static_cast<uint32_t>(rank); }

  const int rank_;
  const int socket_;
  Meeting& shared_;
  uint64_t meetings_ = 0;
  uint32_t row_ = 1;
  uint64_t wrong_ = 0;
  cudaStream_t stream_ = nullptr;
  ncclComm_t comm_ = nullptr;
  char* source_ = nullptr;
  char* target_ = nullptr;
  unsigned long long* counted_ = nullptr;
};

void Rank::begin() {
  int gpus = 0;
  CHECK_CUDA(cudaGetDeviceCount(&gpus));
  if (gpus < 2) {
    if (rank_ == 0) std::fprintf(stderr, "nccl.cu: SKIPPED: needs 2 GPUs, found %d\n", gpus);
    std::_Exit(3);
  }
  CHECK_CUDA(cudaSetDevice(rank_));
  CHECK_CUDA(cudaFree(nullptr));
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  CHECK_CUDA(cudaMalloc(&source_, kBufferBytes));
  CHECK_CUDA(cudaMalloc(&target_, kBufferBytes));
  CHECK_CUDA(cudaMalloc(&counted_, sizeof(*counted_)));
  prepare(kBufferBytes);  // loads the kernels, too
  verify(false, kKiB, 1, 1, 0);
  int version = 0;
  CHECK_NCCL(ncclGetVersion(&version));
  cudaDeviceProp properties{};
  CHECK_CUDA(cudaGetDeviceProperties(&properties, rank_));
  if (rank_ == 0)
    std::printf("{\"peer\": \"nccl\", \"row\": \"version\", \"nccl\": %d, \"gpu\": \"%s\"}\n",
                version, properties.name);
}

void Rank::end() {
  disconnect();
  CHECK_CUDA(cudaFree(source_));
  CHECK_CUDA(cudaFree(target_));
  CHECK_CUDA(cudaFree(counted_));
  CHECK_CUDA(cudaStreamDestroy(stream_));
  meet();
}

double Rank::once(const std::function<void()>& body, Until until) {
  meet();
  if (rank_ == 0) shared_.begin = nowUs();
  body();
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  shared_.end[rank_] = nowUs();
  meet();
  const double end = until == Until::kReceiver ? shared_.end[1]
                     : until == Until::kSender ? shared_.end[0]
                                               : std::max(shared_.end[0], shared_.end[1]);
  const double taken = end - shared_.begin;
  meet();
  return taken;
}

double Rank::run(const std::function<void()>& body, Until until, int warmup, int samples) {
  for (int i = 0; i < warmup; ++i) (void)once(body, until);
  std::vector<double> times;
  for (int i = 0; i < samples; ++i) times.push_back(once(body, until));
  return median(times);
}

void Rank::prepare(uint64_t bytes) {
  ++row_;
  fill<<<1024, 256, 0, stream_>>>(reinterpret_cast<uint32_t*>(source_), bytes / 4, seedOf(rank_));
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaMemsetAsync(target_, 0x5a, bytes, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
}

void Rank::verify(bool receives, uint64_t blockBytes, uint64_t count, uint64_t stride,
                  int senderRank) {
  unsigned long long words = 0;
  CHECK_CUDA(cudaMemsetAsync(counted_, 0, sizeof(*counted_), stream_));
  countWrong<<<1024, 256, 0, stream_>>>(reinterpret_cast<const uint32_t*>(target_), blockBytes / 4,
                                        count, stride, seedOf(senderRank), counted_);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaMemcpyAsync(&words, counted_, sizeof(words), cudaMemcpyDeviceToHost, stream_));
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  shared_.wrong[rank_] = receives ? words * 4 : 0;
}

// Rank 1 tells rank 0 what it found wrong; called by both.
void Rank::print(const char* row, uint64_t bytes, uint64_t count, uint64_t window, double us,
                 const std::string& more, double directions) {
  meet();
  const uint64_t wrong = shared_.wrong[0] + shared_.wrong[1];
  wrong_ += wrong;
  if (rank_ == 0)
    std::printf(
        "{\"peer\": \"nccl\", \"row\": \"%s\", \"bytes\": %llu, \"blocks\": %llu, "
        "\"window\": %llu, \"gbps\": %.6g, \"us\": %.6g, \"wrong\": %llu%s}\n",
        row, static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(count),
        static_cast<unsigned long long>(window), directions * static_cast<double>(bytes) / us / 1e3,
        us, static_cast<unsigned long long>(wrong), more.c_str());
  meet();
}

void Rank::connect(int nth) {
  const uint64_t before = freeBytes();
  meet();
  const double start = nowUs();
  ncclUniqueId id;
  if (rank_ == 0) {
    CHECK_NCCL(ncclGetUniqueId(&id));
    if (::write(socket_, &id, sizeof(id)) != ssize_t{sizeof(id)}) std::_Exit(2);
  } else if (::recv(socket_, &id, sizeof(id), MSG_WAITALL) != ssize_t{sizeof(id)}) {
    std::_Exit(2);
  }
  CHECK_NCCL(ncclCommInitRank(&comm_, 2, id, rank_));
  const double initUs = nowUs() - start;
  prepare(kKiB);
  const double firstUs = once([&] { move(0, 0, kKiB); }, Until::kReceiver);
  verify(rank_ == 1, kKiB, 1, 1, 0);
  const uint64_t after = freeBytes();
  shared_.used[rank_] = before > after ? before - after : 0;
  meet();
  const std::string more =
      ", \"nth\": " + std::to_string(nth) + ", \"init_us\": " + std::to_string(initUs) +
      ", \"first_send_us\": " + std::to_string(firstUs) +
      ", \"device_bytes\": " + std::to_string(shared_.used[0] + shared_.used[1]);
  print("setup", kKiB, 1, 1, initUs + firstUs, more);
}

void Rank::sendReceive(uint64_t bytes, uint64_t window) {
  const uint64_t places = std::min(window, kBufferBytes / bytes);
  prepare(bytes * places);
  const int samples = bytes * window >= 16 * kMiB ? 7 : 40;
  const double us = run(
      [&] {
        for (uint64_t i = 0; i < window; ++i) move(i % places * bytes, i % places * bytes, bytes);
      },
      Until::kReceiver, 3, samples);
  verify(rank_ == 1, bytes, places, 1, 0);
  print("sendrecv", bytes, 1, window, us / static_cast<double>(window));
}

void Rank::blocks(uint64_t count, uint64_t bytes) {
  prepare(count * bytes);
  const auto list = [&](uint64_t length) {
    CHECK_NCCL(ncclGroupStart());
    for (uint64_t i = 0; i < length; ++i) move(i * bytes, i * kStride % length * bytes, bytes);
    CHECK_NCCL(ncclGroupEnd());
  };
  // A list that would take too long is measured shortened, and says so.
  constexpr int kWarmup = 1;
  constexpr int kSamples = 5;
  const uint64_t probe = std::min<uint64_t>(count, 1024);
  (void)once([&] { list(probe); }, Until::kReceiver);
  const double each = once([&] { list(probe); }, Until::kReceiver) / static_cast<double>(probe);
  const double most = kMostRowUs / (each * (kWarmup + kSamples));
  uint64_t length = count;
  if (most < static_cast<double>(count))
    length = std::max<uint64_t>(1, static_cast<uint64_t>(most));
  if (length % kStride == 0) --length;  // or places would repeat
  const double us = run([&] { list(length); }, Until::kReceiver, kWarmup, kSamples);
  verify(rank_ == 1, bytes, length, kStride, 0);
  print("blocks", length * bytes, length, 1, us,
        length == count ? "" : ", \"shortened_from\": " + std::to_string(count));
}

void Rank::pingPong(uint64_t bytes, bool inGraph) {
  const int rounds = bytes <= 64 * kKiB ? 200 : 20;
  prepare(bytes);
  const int other = 1 - rank_;
  // Rank 1 sends what it received.
  const auto round = [&] {
    if (rank_ == 0) CHECK_NCCL(ncclSend(source_, bytes, ncclChar, other, comm_, stream_));
    CHECK_NCCL(ncclRecv(target_, bytes, ncclChar, other, comm_, stream_));
    if (rank_ == 1) CHECK_NCCL(ncclSend(target_, bytes, ncclChar, other, comm_, stream_));
  };
  cudaGraphExec_t graph = nullptr;
  if (inGraph) {
    cudaGraph_t captured = nullptr;
    CHECK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < kPerGraph; ++i) round();
    CHECK_CUDA(cudaStreamEndCapture(stream_, &captured));
    CHECK_CUDA(cudaGraphInstantiateWithFlags(&graph, captured, 0));
    CHECK_CUDA(cudaGraphDestroy(captured));
  }
  const double us = run(
      [&] {
        for (int i = 0; i < rounds; i += inGraph ? kPerGraph : 1) {
          if (inGraph)
            CHECK_CUDA(cudaGraphLaunch(graph, stream_));
          else
            round();
        }
      },
      Until::kSender, 2, 15);
  verify(true, bytes, 1, 1, 0);
  print(inGraph ? "pingpong_graph" : "pingpong", bytes, 1, 1, us / rounds);
  if (graph != nullptr) CHECK_CUDA(cudaGraphExecDestroy(graph));
}

void Rank::bidirectional(uint64_t bytes) {
  prepare(bytes);
  const int other = 1 - rank_;
  const double us = run(
      [&] {
        CHECK_NCCL(ncclGroupStart());
        CHECK_NCCL(ncclSend(source_, bytes, ncclChar, other, comm_, stream_));
        CHECK_NCCL(ncclRecv(target_, bytes, ncclChar, other, comm_, stream_));
        CHECK_NCCL(ncclGroupEnd());
      },
      Until::kBoth, 2, 7);
  verify(true, bytes, 1, 1, other);
  print("bidirectional", bytes, 1, 1, us, "", 2);
}

int play(int rank, int socket, Meeting& meeting) {
  Rank player(rank, socket, meeting);
  player.begin();
  for (int nth = 1; nth <= 3; ++nth) {
    if (nth > 1) player.disconnect();
    player.connect(nth);
  }
  for (uint64_t window : {1, 16})
    for (uint64_t bytes = kKiB; bytes <= kGiB; bytes *= 4) player.sendReceive(bytes, window);
  player.blocks(31, 73 * kKiB);
  player.blocks(128, 512 * kKiB);
  player.blocks(256, 71 * kKiB);
  player.blocks(4096, 16 * kKiB);
  player.blocks(16384, 4 * kKiB);
  // 100,000 blocks of 45 KiB in one group did not end within a minute, and are left out.
  for (const bool inGraph : {false, true})
    for (const uint64_t bytes : {uint64_t{8}, kKiB, 64 * kKiB, kMiB, 16 * kMiB})
      player.pingPong(bytes, inGraph);
  player.bidirectional(512 * kMiB);
  player.end();
  return player.wrong() == 0 ? 0 : 1;
}

}  // namespace

int main() {
  // Nothing here may wait for ever: an alarm ends either process, and one's end is the other's.
  ::setenv("NCCL_NVLS_ENABLE", "0", 1);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 2;
  void* page =
      ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 2;
  Meeting& meeting = *new (page) Meeting;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();  // before CUDA is touched
  if (child < 0) return 2;
  ::alarm(kMostSeconds);
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) return 2;
    return play(1, ends[1], meeting);
  }
  std::signal(SIGCHLD, [](int) {
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) <= 0) return;
    // Done, or the same that this process finds by itself: too few GPUs.
    if (WIFEXITED(status) && WEXITSTATUS(status) != 2) return;
    std::_Exit(2);  // the child said why
  });
  return play(0, ends[0], meeting);
}
