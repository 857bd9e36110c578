// SPDX-License-Identifier: Apache-2.0
//
// What the larger examples need besides the library: a command line, a process for each role, the
// way a ticket takes between them, and bytes that can be checked. Nothing here is needed to use
// Peerlane; your program has a launcher, and data, of its own. Confined to one thread.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "peerlane/peerlane.h"

#ifdef EXAMPLE_HAS_CUDA
#include <cuda_runtime_api.h>
#endif

namespace example {

using Clock = std::chrono::steady_clock;
using peerlane::Code;
using peerlane::Result;
using peerlane::Status;

inline constexpr std::chrono::seconds kPatience{20};  // no wait of the library is for ever

// ---- The command line: --NAME COUNT, and --device host|cuda|cuda:N for all roles or, as
// --device ROLE=cuda:N, for one.

struct Options {
  uint64_t count = 0;
  std::map<std::string, peerlane::Device> devices;  // by role
};

inline Result<uint64_t> countFrom(const std::string& text) {
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || text.size() > 9)
    return Status(Code::kInvalidArgument, "'" + text + "' is not a count below 1000000000");
  return uint64_t{std::stoul(text)};
}

inline Result<peerlane::Device> deviceFrom(const std::string& text) {
  if (text == "host") return peerlane::Device{};
  if (text == "cuda") return peerlane::Device{peerlane::DeviceKind::kCuda, 0};
  if (!text.starts_with("cuda:"))
    return Status(Code::kInvalidArgument,
                  "device '" + text + "'; host, cuda or cuda:N is expected");
  PEERLANE_ASSIGN(const uint64_t index, countFrom(text.substr(5)));
  return peerlane::Device{peerlane::DeviceKind::kCuda, static_cast<int32_t>(index)};
}

inline Status takeDevice(const std::string& value, Options& options) {
  const size_t equals = value.find('=');
  PEERLANE_ASSIGN(const peerlane::Device device,
                  deviceFrom(equals == std::string::npos ? value : value.substr(equals + 1)));
  const std::string role = equals == std::string::npos ? "" : value.substr(0, equals);
  if (!role.empty() && !options.devices.contains(role))
    return Status(Code::kInvalidArgument, "there is no role '" + role + "'");
  for (auto& [name, where] : options.devices)
    if (role.empty() || role == name) where = device;
  return Status::ok();
}

// `countName`: "--requests", say; `count`: how many by default.
inline Result<Options> parse(int argc, char** argv, const std::string& countName, uint64_t count,
                             const std::vector<std::string>& roles) {
  Options options;
  options.count = count;
  for (const std::string& role : roles) options.devices[role] = {};
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if ((name != countName && name != "--device") || i + 1 == argc)
      return Status(Code::kInvalidArgument, "'" + name + "'; " + countName +
                                                " COUNT and --device [ROLE=]host|cuda|cuda:N are "
                                                "understood");
    if (name == "--device") {
      PEERLANE_RETURN_IF_ERROR(takeDevice(argv[i + 1], options));
    } else {
      PEERLANE_ASSIGN(options.count, countFrom(argv[i + 1]));
      if (options.count == 0) return Status(Code::kInvalidArgument, countName + " of at least 1");
    }
  }
  return options;
}

// ---- Memory of a role. This is all that differs between the host and a GPU.

inline Result<std::unique_ptr<peerlane::Context>> contextOn(const peerlane::Device& device) {
  peerlane::ContextOptions options;
  if (device.kind != peerlane::DeviceKind::kHost) options.devices = {device};
  return peerlane::Context::create(std::move(options));
}

inline Result<peerlane::Region> allocateOn(peerlane::Context& context,
                                           const peerlane::Device& device, uint64_t bytes,
                                           peerlane::Access access) {
  return context.allocate(bytes, {.device = device, .access = access});
}

// In your program a kernel writes and reads the memory. A copy of memory that can be paged may
// return early: whoever puts the bytes next, on a stream of the library, must find all of them.
inline Status copyBytes(const peerlane::Device& device, void* to, const void* from, size_t bytes) {
  if (device.kind == peerlane::DeviceKind::kHost) {
    std::memcpy(to, from, bytes);
    return Status::ok();
  }
#ifdef EXAMPLE_HAS_CUDA
  cudaError_t error = cudaSetDevice(device.index);
  if (error == cudaSuccess) error = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
  if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
  return error == cudaSuccess ? Status::ok() : Status(Code::kSystem, cudaGetErrorString(error));
#else
  return Status(Code::kNotSupported, "the examples were built without CUDA");
#endif
}

// Between a buffer of this process and the region.
inline Status fill(const peerlane::Region& to, uint64_t offset, std::span<const std::byte> bytes) {
  return copyBytes(to.device(), to.data() + offset, bytes.data(), bytes.size());
}
inline Status look(const peerlane::Region& from, uint64_t offset, std::span<std::byte> bytes) {
  return copyBytes(from.device(), bytes.data(), from.data() + offset, bytes.size());
}

// ---- Bytes that nobody can guess: the same seed makes the same ones.

inline void makeBytes(uint64_t seed, std::span<std::byte> bytes) {
  seed *= 0x9e3779b97f4a7c15;
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t word = (seed + at) * 0xbf58476d1ce4e5b9;
    word ^= word >> 31;
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, bytes.size() - at));
  }
}

// A plain struct as a message, and back.
template <typename T>
std::span<const std::byte> bytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
Result<T> messageAs(std::span<const std::byte> message) {
  if (message.size() != sizeof(T)) return Status(Code::kCorrupt, "a message of another size");
  std::array<std::byte, sizeof(T)> bytes;
  std::copy(message.begin(), message.end(), bytes.begin());
  return std::bit_cast<T>(bytes);
}

inline double secondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// ---- Processes.

// How the ticket of one role reaches the others here; elsewhere it is a file, a variable of the
// environment, or whatever your launcher offers. It is a secret: who has it may connect.
class TicketPipes {
 public:
  explicit TicketPipes(size_t readers) : ends_(readers) {
    for (auto& ends : ends_)
      if (::pipe(ends.data()) != 0) ends = {-1, -1};
  }
  ~TicketPipes() { close(); }
  TicketPipes(const TicketPipes&) = delete;
  TicketPipes& operator=(const TicketPipes&) = delete;

  // To every reader.
  Status give(const std::string& ticket) {
    const std::string line = ticket + "\n";
    for (const auto& ends : ends_)
      if (::write(ends[1], line.data(), line.size()) != static_cast<ssize_t>(line.size()))
        return Status(Code::kUnavailable, "a process ended before it was given the ticket");
    close();
    return Status::ok();
  }
  Result<std::string> take(size_t reader) {
    closeEnds(1);  // else this process would wait for itself
    std::string ticket;
    for (char c = 0; ::read(ends_[reader][0], &c, 1) == 1;) {
      if (c == '\n') return ticket;
      ticket += c;
    }
    return Status(Code::kUnavailable, "the process with the ticket ended before it gave it");
  }
  void close() {
    closeEnds(0);
    closeEnds(1);
  }

 private:
  void closeEnds(size_t which) {
    for (auto& ends : ends_)
      if (const int end = std::exchange(ends[which], -1); end >= 0) ::close(end);
  }
  std::vector<std::array<int, 2>> ends_;
};

struct Role {
  std::string name;
  std::function<Status()> run;
};

// Runs every role as a process. All are forked before one of them makes a context: a context has
// threads, and CUDA a state, that do not survive a fork. When one fails, the others are ended. 0
// when all ended well.
inline int runRoles(const std::vector<Role>& roles, TicketPipes& tickets) {
  std::vector<pid_t> running;
  for (const Role& role : roles) {
    const pid_t process = ::fork();
    if (process == 0) {
      const Status ended = role.run();
      if (!ended) std::fprintf(stderr, "%s: %s\n", role.name.c_str(), ended.toString().c_str());
      std::fflush(stdout);
      ::_exit(ended ? 0 : 1);
    }
    if (process > 0) running.push_back(process);
  }
  tickets.close();
  int code = running.size() == roles.size() ? 0 : 1;
  while (!running.empty()) {
    int status = 0;
    std::erase(running, ::waitpid(-1, &status, 0));
    if (status == 0 && code == 0) continue;
    if (code == 0 && WIFSIGNALED(status))
      std::fprintf(stderr, "a side was ended by signal %d\n", WTERMSIG(status));
    code = 1;
    for (const pid_t process : running) ::kill(process, SIGKILL);
  }
  return code;
}

}  // namespace example
