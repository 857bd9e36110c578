// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/p2p/bench_p2p.h"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iomanip>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "peerlane/p2p.h"
#include "tools/bench/host/bench_connect.h"
#include "tools/bench/sides/bench_report.h"
#include "tools/measure/bench_samples.h"
#include "tools/memory/device_bytes.h"

namespace peerlane::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kPatienceMs = 20000;
constexpr uint32_t kCommsKept = 32;

double microsecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

Status checked(HcclResult result, const char* call) {
  if (result == HCCL_SUCCESS) return Status::ok();
  return Status(Code::kInternal, std::string(call) + ": " + P2PGetLastError());
}

// One end of a socket pair between the two processes. The other one's end ends it.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  ~Line() { ::close(fd_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  template <typename T>
  Status send(const T& blob) const {
    return ::send(fd_, &blob, sizeof blob, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof blob)
               ? Status::ok()
               : gone();
  }
  template <typename T>
  Result<T> receive() const {
    T blob;
    if (::recv(fd_, &blob, sizeof blob, MSG_WAITALL) != static_cast<ssize_t>(sizeof blob))
      return gone();
    return blob;
  }
  Status meet() const {
    PEERLANE_RETURN_IF_ERROR(send('.'));
    return receive<char>().status();
  }

 private:
  static Status gone() { return Status(Code::kPeerLost, "the other process has ended"); }
  const int fd_;
};

struct Times {
  double root = 0;  // P2PGetRootInfo, at the side that makes it
  double init = 0;  // P2PCommInitRootInfo
  double word = 0;  // and until eight bytes are there
};

class Side {
 public:
  Side(bool isRoot, const Line& line, std::vector<int> gpus)
      : isRoot_(isRoot), line_(line), gpus_(std::move(gpus)) {}

  Status run(const BenchOptions& options) {
    PEERLANE_RETURN_IF_ERROR(openGpu());
    P2PComm comm = nullptr;
    PEERLANE_RETURN_IF_ERROR(connect(comm, first_));
    PEERLANE_RETURN_IF_ERROR(checked(P2PCommDestroy(comm), "P2PCommDestroy"));
    const uint64_t samples = options.samples == 0 ? 200 : options.samples;
    for (uint64_t i = 0; i < options.warmup + samples; ++i) {
      Times times;
      PEERLANE_RETURN_IF_ERROR(connect(comm, times));
      if (i >= options.warmup) {
        init_.add(times.init);
        all_.add(times.init + times.word);
      }
      PEERLANE_RETURN_IF_ERROR(checked(P2PCommDestroy(comm), "P2PCommDestroy"));
    }
    return weigh();
  }

  const Times& first() const { return first_; }
  const Samples& init() const { return init_; }
  const Samples& all() const { return all_; }
  double hostBytes() const { return hostBytes_; }
  double descriptors() const { return descriptors_; }
  double deviceBytes() const { return deviceBytes_; }

 private:
  // As a program does that has used CUDA before.
  Status openGpu() {
    if (gpus_.empty()) return Status::ok();
    const int gpu = gpus_[isRoot_ ? 0 : gpus_.size() - 1];
    auto allocated = allocateByRuntime({DeviceKind::kCuda, gpu}, 64);
    if (!allocated.isOk())
      return allocated.status().withContext("cuda:" + std::to_string(gpu) + " (--device)");
    word_ = std::move(*allocated);
    return checked(PrewarmHccp(), "PrewarmHccp");
  }

  Status connect(P2PComm& comm, Times& times) {
    PEERLANE_RETURN_IF_ERROR(line_.meet());
    HcclRootInfo root;
    auto start = Clock::now();
    if (isRoot_) {
      PEERLANE_RETURN_IF_ERROR(checked(P2PGetRootInfo(&root), "P2PGetRootInfo"));
      times.root = microsecondsSince(start);
      PEERLANE_RETURN_IF_ERROR(line_.send(root));
    } else {
      PEERLANE_ASSIGN(root, line_.receive<HcclRootInfo>());
    }
    start = Clock::now();
    PEERLANE_RETURN_IF_ERROR(checked(P2PCommInitRootInfo(&root, isRoot_ ? P2P_SENDER : P2P_RECEIVER,
                                                         P2P_LINK_AUTO, &comm, nullptr),
                                     "P2PCommInitRootInfo"));
    times.init = microsecondsSince(start);
    start = Clock::now();
    uint64_t word = 0x1122334455667788ull;
    void* const memory = word_ ? static_cast<void*>(word_.get()) : &word;
    PEERLANE_RETURN_IF_ERROR(
        isRoot_ ? checked(P2PSend(memory, 1, HCCL_DATA_TYPE_INT64, comm, nullptr), "P2PSend")
                : checked(P2PRecv(memory, 1, HCCL_DATA_TYPE_INT64, comm, nullptr), "P2PRecv"));
    PEERLANE_RETURN_IF_ERROR(checked(P2PCommSynchronize(comm, kPatienceMs), "P2PCommSynchronize"));
    times.word = microsecondsSince(start);
    // A send of so little ends in the receiver's inbox, which goes with the sender's communicator.
    return line_.meet();
  }

  // The first ones bring the things made once.
  Status weigh() {
    std::vector<P2PComm> comms;
    const auto make = [&](uint32_t count) -> Status {
      for (uint32_t i = 0; i < count; ++i) {
        Times times;
        P2PComm comm = nullptr;
        PEERLANE_RETURN_IF_ERROR(connect(comm, times));
        comms.push_back(comm);
      }
      return line_.meet();
    };
    PEERLANE_RETURN_IF_ERROR(make(2));
    const Footprint before = footprintOfThisProcess();
    PEERLANE_ASSIGN(const uint64_t deviceBefore, deviceBytesInUse());
    PEERLANE_RETURN_IF_ERROR(make(kCommsKept));
    const Footprint after = footprintOfThisProcess();
    PEERLANE_ASSIGN(const uint64_t deviceAfter, deviceBytesInUse());
    PEERLANE_RETURN_IF_ERROR(line_.meet());
    const auto each = [](uint64_t low, uint64_t high) {
      return (static_cast<double>(high) - static_cast<double>(low)) / kCommsKept;
    };
    hostBytes_ = each(before.residentBytes, after.residentBytes);
    descriptors_ = each(before.descriptors, after.descriptors);
    deviceBytes_ = each(deviceBefore, deviceAfter);
    for (const P2PComm comm : comms)
      PEERLANE_RETURN_IF_ERROR(checked(P2PCommDestroy(comm), "P2PCommDestroy"));
    return Status::ok();
  }
  Result<uint64_t> deviceBytesInUse() const {
    if (gpus_.empty()) return uint64_t{0};
    return bytesInUse({DeviceKind::kCuda, gpus_[isRoot_ ? 0 : gpus_.size() - 1]});
  }

  const bool isRoot_;
  const Line& line_;
  const std::vector<int> gpus_;
  RuntimeMemory word_;
  Times first_;
  Samples init_, all_;
  double hostBytes_ = 0, descriptors_ = 0, deviceBytes_ = 0;
};

BenchRow rowOf(const char* what, const Samples& samples, const Side& side, bool hasGpu) {
  BenchRow row;
  row.operation = what;
  row.memory = hasGpu ? "gpu" : "host";
  row.link = "auto";
  row.engine = "p2p";
  row.bytes = 8;
  row.isLatency = true;
  row.outcome.ours = samples;
  row.extras["first_root_us"] = side.first().root;
  row.extras["first_init_us"] = side.first().init;
  row.extras["host_bytes_per_communicator"] = side.hostBytes();
  row.extras["fds_per_communicator"] = side.descriptors();
  if (hasGpu) row.extras["device_bytes_per_communicator"] = side.deviceBytes();
  return row;
}

void print(const Side& side, double firstRoot, bool hasGpu, std::ostream& out) {
  const auto line = [&out](const char* what, double value, const char* unit) {
    out << std::left << std::setw(52) << what << std::right << std::fixed << std::setprecision(1)
        << std::setw(10) << value << ' ' << unit << '\n';
  };
  line("first P2PGetRootInfo of the process", firstRoot, "us");
  line("first P2PCommInitRootInfo", side.first().init, "us");
  line("P2PCommInitRootInfo, p50", side.init().percentile(50), "us");
  line("P2PCommInitRootInfo, p99", side.init().percentile(99), "us");
  line("and until the first 8 bytes have come, p50", side.all().percentile(50), "us");
  line("and until the first 8 bytes have come, p99", side.all().percentile(99), "us");
  line("host memory of a communicator, this side", side.hostBytes() / 1024, "KiB");
  line("descriptors of a communicator, this side", side.descriptors(), "");
  if (hasGpu)
    line("device memory of a communicator, on this GPU", side.deviceBytes() / 1024, "KiB");
}

}  // namespace

Status runP2pBench(const BenchOptions& options, std::ostream& out) {
  PEERLANE_RETURN_IF_ERROR(checkForP2p(options));
  std::vector<int> gpus;
  if (options.isForGpus()) {
    PEERLANE_ASSIGN(gpus, gpusOf(options));
    if (gpus.empty()) gpus = {0, 1};
  }
  int fds[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
    return Status::system(errno, "socketpair");
  const pid_t child = ::fork();
  if (child < 0) return Status::system(errno, "fork");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(fds[0]);
    const Line line(fds[1]);
    Side root(true, line, gpus);
    Status status = root.run(options);
    if (status.isOk()) status = line.send(root.first().root);
    // A side that lost the other one has nothing to add to the other's message.
    if (!status.isOk() && status.code() != Code::kPeerLost) {
      const std::string text =
          "peerlane: the side that makes the roots: " + status.toString() + "\n";
      (void)!::write(STDERR_FILENO, text.data(), text.size());
    }
    ::_exit(status.isOk() ? 0 : 1);
  }
  ::close(fds[1]);
  const Line line(fds[0]);
  Side side(false, line, gpus);
  PEERLANE_RETURN_IF_ERROR(side.run(options));
  PEERLANE_ASSIGN(const double firstRoot, line.receive<double>());
  int status = 0;
  ::waitpid(child, &status, 0);
  out << "# peerlane bench connect, by the C API: " << (gpus.empty() ? "host memory" : "GPU memory")
      << ", between two processes\n";
  print(side, firstRoot, !gpus.empty(), out);
  if (options.jsonFile.empty()) return Status::ok();
  BenchReport report(out);
  BenchRow row = rowOf("connect_p2p", side.all(), side, !gpus.empty());
  row.extras["first_root_us"] = firstRoot;
  row.extras["init_p50_us"] = side.init().percentile(50);
  row.extras["init_p99_us"] = side.init().percentile(99);
  report.add(std::move(row));
  return report.writeJson(options.jsonFile, options.appendJson);
}

}  // namespace peerlane::bench
