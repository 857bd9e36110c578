// SPDX-License-Identifier: Apache-2.0
//
// p2p_blocks: the patterns that p2p-transfer is known for, through p2p.h, between two processes:
// 128 x 512 KiB, 31 x 73 KiB, 256 x 71 KiB sent as batches; remote host memory scattered into
// pieces; set-up, and what a communicator costs. Each against the raw limit of this machine, and,
// between GPUs, NCCL, in the same run.
//
//   p2p_blocks [--host] [--json FILE]      --host: host memory, also where there are GPUs
//
// A sample is `window` operations posted one after the other; it ends when the receiver's stream
// has passed them, and the receiver says so. The median of the samples counts. Bytes are checked at
// the receiver after each row; a wrong one ends the program with 1.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/p2p_devices.h"
#include "bench/p2p_rival.h"
#include "peerlane/p2p.h"
#include "peerlane/peerlane.h"

namespace peerlane::blocks {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kPatienceMs = 60000;
constexpr size_t kMostBytes = size_t{64} << 20;
constexpr int kSamples = 15;

double microseconds(Clock::time_point from) {
  return std::chrono::duration<double, std::micro>(Clock::now() - from).count();
}

[[noreturn]] void fail(const std::string& what) {
  (void)std::fprintf(stderr, "p2p_blocks: %s: %s\n", what.c_str(), P2PGetLastError());
  ::_exit(1);
}
#define MUST_P2P(call)                       \
  do {                                       \
    if ((call) != HCCL_SUCCESS) fail(#call); \
  } while (false)

// One end of a socket pair between the two processes.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  template <typename T>
  void send(const T& blob) const {
    if (::send(fd_, &blob, sizeof blob, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof blob))
      ::_exit(1);
  }
  template <typename T>
  T receive() const {
    T blob;
    if (::recv(fd_, &blob, sizeof blob, MSG_WAITALL) != static_cast<ssize_t>(sizeof blob))
      ::_exit(1);
    return blob;
  }
  void meet() const {
    send('.');
    (void)receive<char>();
  }

 private:
  int fd_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
double percentile(std::vector<double> values, double part) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(part * static_cast<double>(values.size())))];
}

uint64_t patternWord(uint64_t index, uint64_t seed) {
  return (index + seed) * 0x9e3779b97f4a7c15ull;
}
void fillPattern(std::vector<uint64_t>& words, uint64_t seed) {
  for (size_t i = 0; i < words.size(); ++i) words[i] = patternWord(i, seed);
}

struct Report {
  std::FILE* json = nullptr;
  void row(const char* what, uint32_t blocks, size_t bytes, uint32_t window, double us,
           double ceilingUs, const char* ceiling, double rivalUs) const {
    const double total = static_cast<double>(bytes) * blocks;
    const auto gbps = [&](double time) { return time > 0 ? total / time / 1e3 : 0.0; };
    std::printf("%-34s %4u x %4zu KiB  window %2u  %9.1f us  %7.1f GB/s  %5.3f of %s %.1f GB/s",
                what, blocks, bytes >> 10, window, us, gbps(us), ceilingUs / us, ceiling,
                gbps(ceilingUs));
    if (rivalUs > 0) std::printf("  NCCL %.1f GB/s (x %.1f)", gbps(rivalUs), rivalUs / us);
    std::printf("\n");
    std::fflush(stdout);
    if (json == nullptr) return;
    (void)std::fprintf(json,
                       "{\"row\": \"%s\", \"blocks\": %u, \"bytes\": %zu, \"window\": %u, "
                       "\"us\": %.2f, \"gbps\": %.2f, \"ceiling\": \"%s\", \"ceiling_gbps\": %.2f, "
                       "\"ratio\": %.4f, \"nccl_gbps\": %.2f, \"wrong\": 0}\n",
                       what, blocks, bytes, window, us, gbps(us), ceiling, gbps(ceilingUs),
                       ceilingUs / us, gbps(rivalUs));
    std::fflush(json);
  }
  void value(const char* what, double number, const char* unit) const {
    std::printf("%-34s %.2f %s\n", what, number, unit);
    std::fflush(stdout);
    if (json == nullptr) return;
    (void)std::fprintf(json, "{\"row\": \"%s\", \"value\": %.3f, \"unit\": \"%s\"}\n", what, number,
                       unit);
    std::fflush(json);
  }
};

size_t residentBytes() {
  std::ifstream numbers("/proc/self/statm");
  size_t all = 0, resident = 0;
  numbers >> all >> resident;
  return resident * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// One of the two processes. Side 0 sends and reports, side 1 receives and measures.
class Side {
 public:
  Side(int index, const Line& line, bool onDevice, const Report& report)
      : index_(index), line_(line), onDevice_(onDevice), report_(report) {}

  void run() {
    setUp();
    sendRow(128, size_t{512} << 10);
    sendRow(31, size_t{73} << 10);
    sendRow(256, size_t{71} << 10);
    for (const bool isMapped : {true, false}) scatterRow(256, size_t{71} << 10, isMapped);
    if (!onDevice_) faceRows();
    MUST_P2P(P2PCommDestroy(comm_));
    line_.meet();
  }

 private:
  P2PComm connect(double* us = nullptr, double* rootUs = nullptr) {
    HcclRootInfo root;
    P2PComm comm = nullptr;
    if (index_ == 0) {
      const auto start = Clock::now();
      MUST_P2P(P2PGetRootInfo(&root));
      if (rootUs != nullptr) *rootUs = microseconds(start);
      line_.send(root);
    } else {
      root = line_.receive<HcclRootInfo>();
    }
    const auto start = Clock::now();
    MUST_P2P(P2PCommInitRootInfo(&root, P2P_BIDIRECTIONAL, P2P_LINK_AUTO, &comm, nullptr));
    if (us != nullptr) *us = microseconds(start);
    return comm;
  }

  void setUp() {
    if (onDevice_) {
      const auto start = Clock::now();
      device_.open(index_);
      if (index_ == 1) report_.value("the GPU opened by CUDA itself", microseconds(start), "us");
    }
    double us = 0, rootUs = 0;
    P2PComm first = connect(&us, &rootUs);
    if (index_ == 0) report_.value("set-up, first: P2PGetRootInfo", rootUs, "us");
    line_.meet();
    if (index_ == 1) report_.value("set-up, first: P2PCommInitRootInfo", us, "us");
    MUST_P2P(P2PCommDestroy(first));
    std::vector<double> times;
    for (int i = 0; i < 220; ++i) {
      line_.meet();
      P2PComm comm = connect(&us);
      // The first byte is there, too.
      uint64_t word = index_ == 0 ? 1 : 0;
      const double arrived = message(comm, &word);
      if (i >= 20) times.push_back(us + arrived);
      MUST_P2P(P2PCommDestroy(comm));
    }
    if (index_ == 1) {
      report_.value("set-up and 8 bytes, warm, p50", median(times), "us");
      report_.value("set-up and 8 bytes, warm, p99", percentile(times, 0.99), "us");
    }
    constexpr int kMany = 32;
    std::vector<P2PComm> many{connect()};
    line_.meet();
    const size_t host = residentBytes(), device = device_.usedBytes();
    for (int i = 0; i < kMany; ++i) {
      many.push_back(connect());
      uint64_t word = index_ == 0 ? 1 : 0;
      message(many.back(), &word);
    }
    line_.meet();
    const auto each = [&](size_t before, size_t after) {
      return (static_cast<double>(after) - static_cast<double>(before)) / kMany / 1024;
    };
    if (index_ == 1) {
      report_.value("host memory of a communicator", each(host, residentBytes()), "KiB");
      if (onDevice_)
        report_.value("device memory, both sides on it", each(device, device_.usedBytes()), "KiB");
    }
    line_.meet();
    comm_ = many.back();
    many.pop_back();
    for (P2PComm comm : many) MUST_P2P(P2PCommDestroy(comm));
    stream_ = device_.makeStream();
  }

  // Eight bytes from side 0 to side 1. How long it took, in us.
  double message(P2PComm comm, uint64_t* word) {
    const auto start = Clock::now();
    void* const memory = onDevice_ ? device_.word() : word;
    aclrtStream const stream = nullptr;
    if (index_ == 0)
      MUST_P2P(P2PSend(memory, 1, HCCL_DATA_TYPE_INT64, comm, stream));
    else
      MUST_P2P(P2PRecv(memory, 1, HCCL_DATA_TYPE_INT64, comm, stream));
    sync(comm, stream);
    const double took = microseconds(start);
    // A send of so little ends in the receiver's inbox, which goes with the sender's communicator.
    line_.meet();
    return took;
  }

  void sync(P2PComm comm, aclrtStream stream) {
    if (onDevice_)
      device_.synchronize(stream);
    else
      MUST_P2P(P2PCommSynchronize(comm, kPatienceMs));
  }

  // Memory of this side's kind.
  std::byte* makeMemory(size_t bytes) {
    if (onDevice_) return device_.allocate(bytes);
    void* memory = nullptr;
    MUST_P2P(P2PAllocHostMem(&memory, bytes, P2P_NUMA_ANY));
    return static_cast<std::byte*>(memory);
  }

  // `post` is called by both; the receiver's time from the word "go" to its last byte.
  double measure(uint32_t window, const std::function<void()>& post) {
    std::vector<double> samples;
    for (int sample = -2; sample < kSamples; ++sample) {
      line_.meet();
      const auto start = Clock::now();
      for (uint32_t i = 0; i < window; ++i) post();
      sync(comm_, stream_);
      if (sample >= 0) samples.push_back(microseconds(start) / window);
      line_.meet();
      if (!onDevice_) continue;
      MUST_P2P(P2PCommSynchronize(comm_, kPatienceMs));
    }
    return median(samples);
  }

  // Blocks lie at places that are not in order.
  std::vector<void*> scattered(std::byte* base, uint32_t blocks, size_t bytes) const {
    std::vector<void*> places(blocks);
    for (uint32_t i = 0; i < blocks; ++i) places[i] = base + (i * 7919ull % blocks) * bytes;
    return places;
  }

  void check(const std::vector<void*>& places, size_t bytes, uint64_t seed) {
    std::vector<uint64_t> words(bytes / 8);
    for (size_t i = 0; i < places.size(); ++i) {
      device_.toHost(words.data(), places[i], bytes, onDevice_);
      for (size_t w = 0; w < words.size(); ++w)
        if (words[w] != patternWord(i * words.size() + w, seed)) fail("a wrong byte arrived");
    }
  }

  void sendRow(uint32_t blocks, size_t bytes) {
    const size_t total = blocks * bytes;
    std::byte* const memory = makeMemory(total);
    const std::vector<void*> places = scattered(memory, blocks, bytes);
    std::vector<uint64_t> counts(blocks, bytes), words(bytes / 8);
    const uint64_t seed = blocks;
    for (uint32_t i = 0; i < blocks; ++i) {
      for (size_t w = 0; w < words.size(); ++w)
        words[w] = index_ == 0 ? patternWord(i * words.size() + w, seed) : 0;
      device_.fromHost(places[i], words.data(), bytes, onDevice_);
    }
    const double ceiling = ceilingOf(memory, total);
    const double rival = onDevice_ ? rivalBlocks(places, bytes) : 0;
    for (const uint32_t window : {1u, 16u}) {
      const double us = measure(window, [&] {
        auto** const list = const_cast<void**>(places.data());
        if (index_ == 0)
          MUST_P2P(P2PSendBatch(list, counts.data(), HCCL_DATA_TYPE_UINT8, blocks, comm_, stream_));
        else
          MUST_P2P(P2PRecvBatch(list, counts.data(), HCCL_DATA_TYPE_UINT8, blocks, comm_, stream_));
      });
      if (index_ == 1)
        report_.row("P2PSendBatch", blocks, bytes, window, us, ceiling,
                    onDevice_ ? "copy engine" : "memcpy", rival);
    }
    if (index_ == 1) check(places, bytes, seed);
    line_.meet();
  }

  // NCCL: one group of as many sends or receives.
  double rivalBlocks(const std::vector<void*>& places, size_t bytes) {
    if (!rival_) {
      rival_ = std::make_unique<Rival>();
      RivalId id{};
      if (index_ == 0) {
        id = rival_->makeId();
        line_.send(id);
      } else {
        id = line_.receive<RivalId>();
      }
      if (!rival_->join(id, index_) && index_ == 1)
        std::printf("NCCL is not here: %s\n", rival_->whyNot().c_str());
    }
    if (!rival_->isThere()) return 0;
    return measure(16, [&] { rival_->transfer(index_ == 0, places, bytes, stream_); });
  }

  // The same bytes in one piece: by the copy engine into the other side's memory, or by memcpy.
  double ceilingOf(std::byte* memory, size_t total) {
    if (!onDevice_) {
      std::vector<double> samples;
      std::vector<std::byte> from(total, std::byte{1});
      if (index_ == 1)
        for (int i = -2; i < kSamples; ++i) {
          const auto start = Clock::now();
          std::memcpy(memory, from.data(), total);
          if (i >= 0) samples.push_back(microseconds(start));
        }
      line_.meet();
      if (index_ == 1) std::memset(memory, 0, total);
      return index_ == 1 ? median(samples) : 0;
    }
    double us = 0;
    if (index_ == 1) {
      line_.send(device_.exported(memory));
      us = line_.receive<double>();
      device_.clear(memory, total);
    } else {
      us = device_.copyTime(memory, line_.receive<Exported>(), total, stream_);
      line_.send(us);
    }
    line_.meet();
    return us;
  }

  // Host memory of side 0 into pieces at side 1, which acts alone.
  void scatterRow(uint32_t blocks, size_t bytes, bool isMapped) {
    const size_t total = blocks * bytes;
    const uint64_t seed = 77;
    if (index_ == 0) {
      void* memory = nullptr;
      std::unique_ptr<std::byte[]> heap;
      if (isMapped) {
        MUST_P2P(P2PAllocHostMem(&memory, total, P2P_NUMA_ANY));
      } else {
        heap = std::make_unique<std::byte[]>(total);
        memory = heap.get();
      }
      std::vector<uint64_t> words(total / 8);
      fillPattern(words, seed);
      std::memcpy(memory, words.data(), total);
      P2pSegmentInfo info;
      MUST_P2P(P2PRegisterHostMem(memory, total, &info, P2P_SEGMENT_READ_ONLY));
      line_.send(info);
      line_.send(memory);
      line_.send(::getpid());
      line_.meet();
      MUST_P2P(P2PUnregisterMem(&info, kPatienceMs));
      if (isMapped) MUST_P2P(P2PFreeHostMem(memory));
      return;
    }
    const auto info = line_.receive<P2pSegmentInfo>();
    auto* const far = line_.receive<std::byte*>();
    const auto owner = line_.receive<pid_t>();
    MUST_P2P(P2PImportHostSegment(info));
    std::byte* const memory = makeMemory(total);
    std::vector<void*> places = scattered(memory, blocks, bytes);
    std::vector<uint64_t> counts(blocks, bytes);
    const double hostLink = onDevice_ ? device_.hostLinkTime(memory, total, stream_) : 0;
    const double readv = isMapped && onDevice_ ? 0 : readTime(owner, far, total);
    const double ceiling = std::max(hostLink, isMapped ? hostLink : readv);
    for (const uint32_t window : {1u, 16u}) {
      std::vector<double> samples;
      for (int sample = -2; sample < kSamples; ++sample) {
        const auto start = Clock::now();
        for (uint32_t i = 0; i < window; ++i)
          MUST_P2P(P2PScatterFromRemoteHostMem(far, places.data(), counts.data(),
                                               HCCL_DATA_TYPE_UINT8, blocks, comm_, stream_));
        sync(comm_, stream_);
        if (sample >= 0) samples.push_back(microseconds(start) / window);
      }
      MUST_P2P(P2PCommSynchronize(comm_, kPatienceMs));
      report_.row(isMapped ? "scatter of mapped remote memory" : "scatter of a remote heap", blocks,
                  bytes, window, median(samples), ceiling > 0 ? ceiling : readv,
                  isMapped && onDevice_ ? "host link"
                  : onDevice_           ? "slower of readv, host link"
                                        : "readv",
                  0);
    }
    check(places, bytes, seed);
    MUST_P2P(P2PUnimportSegment(info));
    line_.meet();
  }

  // process_vm_readv of all of it by one thread, as the library does it.
  static double readTime(pid_t owner, std::byte* far, size_t total) {
    std::vector<std::byte> here(total);
    std::vector<double> samples;
    for (int i = -2; i < kSamples; ++i) {
      const auto start = Clock::now();
      iovec local{here.data(), total}, remote{far, total};
      if (::process_vm_readv(owner, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(total))
        fail("process_vm_readv");
      if (i >= 0) samples.push_back(microseconds(start));
    }
    return median(samples);
  }

  // What the C face costs: the same puts and gets through it and through the C++ calls.
  void faceRows() {
    auto context = Context::create().value();
    Region region = context->allocate(kMostBytes).value();
    P2pSegmentInfo info;
    MUST_P2P(P2PRegisterHostMem(region.data(), kMostBytes, &info, P2P_SEGMENT_READ_WRITE));
    if (index_ == 0) {
      char ticket[4096] = {};
      std::strncpy(ticket, context->ticket().c_str(), sizeof ticket - 1);
      line_.send(ticket);
      line_.send(region.share());
      line_.send(info);
      line_.send(region.data());
      line_.meet();
    } else {
      struct Ticket {
        char text[4096];
      };
      const auto ticket = line_.receive<Ticket>();
      const auto reference = line_.receive<RegionReference::Encoded>();
      const auto far = line_.receive<P2pSegmentInfo>();
      auto* const base = line_.receive<std::byte*>();
      const Peer peer = context->connect(ticket.text).value();
      const RemoteRegion remote = peer.importRegion(reference).value();
      MUST_P2P(P2PImportHostSegment(far));
      for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20, size_t{64} << 20}) {
        const int count = static_cast<int>(std::max<size_t>(1, (size_t{64} << 20) / bytes));
        std::vector<double> face, direct;
        for (int sample = -2; sample < 2 * kSamples; ++sample) {
          auto start = Clock::now();
          for (int i = 0; i < count; ++i)
            MUST_P2P(P2PPut(region.data(), base, bytes, HCCL_DATA_TYPE_UINT8, comm_, nullptr));
          MUST_P2P(P2PCommSynchronize(comm_, kPatienceMs));
          if (sample >= 0) face.push_back(microseconds(start) / count);
          HostStream& stream = *hostStream();
          start = Clock::now();
          std::vector<Transfer> all;
          for (int i = 0; i < count; ++i) {
            const Block block{&region, 0, &remote, 0, bytes};
            all.push_back(put(peer, {&block, 1}, {.stream = &stream}).value());
          }
          for (const Transfer& each : all) (void)each.wait(std::chrono::seconds(60));
          all.clear();  // the C face lets go of its own, too
          if (sample >= 0) direct.push_back(microseconds(start) / count);
        }
        report_.row("P2PPut, to the C++ call", 1, bytes, static_cast<uint32_t>(count), median(face),
                    median(direct), "put", 0);
      }
      MUST_P2P(P2PUnimportSegment(far));
      line_.meet();
    }
    MUST_P2P(P2PUnregisterMem(&info, kPatienceMs));
  }
  HostStream* hostStream() {
    if (!hostStream_) hostStream_ = HostStream::create().value();
    return hostStream_.get();
  }

  const int index_;
  const Line& line_;
  const bool onDevice_;
  const Report& report_;
  BenchDevice device_;
  std::unique_ptr<Rival> rival_;
  std::unique_ptr<HostStream> hostStream_;
  P2PComm comm_ = nullptr;
  aclrtStream stream_ = nullptr;
};

int runBoth(bool onDevice, const Report& report) {
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return 1;
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(fds[0]);
    const Line line(fds[1]);
    Side(1, line, onDevice, report).run();
    std::fflush(stdout);
    ::_exit(0);
  }
  ::close(fds[1]);
  {
    const Line line(fds[0]);
    Side(0, line, onDevice, report).run();
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

}  // namespace
}  // namespace peerlane::blocks

int main(int count, char** arguments) {
  using namespace peerlane::blocks;
  bool onDevice = BenchDevice::isThere();
  Report report;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (argument == "--host") {
      onDevice = false;
    } else if (argument == "--json" && i + 1 < count) {
      report.json = std::fopen(arguments[++i], "w");
      if (report.json == nullptr) {
        std::perror(arguments[i]);
        return 2;
      }
    } else {
      (void)std::fprintf(stderr, "usage: p2p_blocks [--host] [--json FILE]\n");
      return 2;
    }
  }
  const int code = runBoth(onDevice, report);
  if (report.json != nullptr) std::fclose(report.json);
  return code;
}
