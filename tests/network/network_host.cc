// SPDX-License-Identifier: Apache-2.0
#include "tests/network/network_host.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "peerlane/core/log_level.h"

namespace peerlane::network {
namespace {

constexpr int kPatienceMs = 60000;
constexpr unsigned kLongestRoleSeconds = 600;  // a slow machine moves a GiB meanwhile
constexpr std::string_view kFailed = "failed: ";

std::string nextName(const char* kind) {
  static int made = 0;
  return kind + std::to_string(made++);
}

std::string reason(const char* call) {
  return std::string(call) + ": " + std::strerror(errno);
}

bool writeFile(const char* path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.flush();
  return file.good();
}

// The test's own namespaces, in which it may make interfaces. Empty, or why there are none.
std::string enter() {
  const int own = CLONE_NEWNET | CLONE_NEWNS;
  if (::unshare(own) == 0) return {};
  const std::string asRoot = reason("unshare");
  const std::string uid = std::to_string(::getuid());
  const std::string gid = std::to_string(::getgid());
  if (::unshare(own | CLONE_NEWUSER) != 0)
    return "network namespaces cannot be made here: " + asRoot + "; in a user namespace, " +
           reason("unshare") +
           ". Run the tests as root, allow user namespaces, or leave these tests out: NETNS=skip";
  if (!writeFile("/proc/self/uid_map", "0 " + uid + " 1") ||
      !writeFile("/proc/self/setgroups", "deny") ||
      !writeFile("/proc/self/gid_map", "0 " + gid + " 1"))
    return "a user namespace without the ids of this user: " + reason("/proc/self/uid_map") +
           "; NETNS=skip leaves these tests out";
  return {};
}

std::string enterOnce() {
  static const std::string why = [] {
    std::string text = enter();
    if (text.empty()) run("ip link set lo up");
    return text;
  }();
  return why;
}

void becomeHost() {
  require(::unshare(CLONE_NEWNET | CLONE_NEWNS) == 0, reason("unshare"));
  require(::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, reason("mount /"));
  require(::mount("none", "/dev/shm", "tmpfs", 0, nullptr) == 0, reason("/dev/shm"));
  run("ip link set lo up");
}

[[noreturn]] void playRole(const NetworkHost::Role& role, const Line& line) {
  ::alarm(kLongestRoleSeconds);
  setLogLevel(LogLevel::kError);  // what they would warn of is what is done to them
  int code = 0;
  try {
    becomeHost();
    line.tell("is a host");
    role(line);
  } catch (const std::exception& failure) {
    line.tell(std::string(kFailed) + failure.what());
    code = 1;
  }
  ::_exit(code);
}

}  // namespace

void run(const std::string& command) {
  FILE* const pipe = ::popen((command + " 2>&1").c_str(), "r");
  require(pipe != nullptr, reason("popen"));
  std::string said;
  std::array<char, 256> piece;
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) said += piece.data();
  require(::pclose(pipe) == 0, command + ": " + said);
}

void Line::tell(const std::string& text) const {
  (void)!::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
}

std::string Line::hear() const {
  pollfd readable{fd_, POLLIN, 0};
  require(::poll(&readable, 1, kPatienceMs) == 1, "nothing was said for a minute");
  std::string text(4096, '\0');
  const ssize_t bytes = ::recv(fd_, text.data(), text.size(), 0);
  require(bytes > 0, "the other end has gone");
  text.resize(static_cast<size_t>(bytes));
  return text;
}

void Line::expect(const std::string& text) const {
  const std::string heard = hear();
  require(heard == text, "heard \"" + heard + "\" instead of \"" + text + "\"");
}

void NetworkTest::SetUp() {
  const char* const wish = std::getenv("NETNS");
  if (wish != nullptr && std::string_view(wish) == "skip")
    GTEST_SKIP() << "NETNS=skip: the hosts of these tests are network namespaces";
  const std::string why = enterOnce();
  ASSERT_EQ(why, "");
}

NetworkWire::NetworkWire() : bridge_(nextName("br")) {
  run("ip link add " + bridge_ + " type bridge mcast_snooping 0");
  run("ip link set " + bridge_ + " up");
}

NetworkWire::~NetworkWire() {
  (void)std::system(("ip link del " + bridge_).c_str());
}

NetworkHost::NetworkHost(const Role& role) {
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0,
          reason("socketpair"));
  pid_ = ::fork();
  require(pid_ >= 0, reason("fork"));
  if (pid_ == 0) {
    ::close(ends[0]);
    playRole(role, Line(ends[1]));
  }
  ::close(ends[1]);
  fd_ = ends[0];
  line_ = std::make_unique<Line>(fd_);
  line_->expect("is a host");
}

NetworkHost::~NetworkHost() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const Port& port : ports_)
    (void)std::system(("ip link del " + port.name + " 2>/dev/null").c_str());
  ::close(fd_);
}

void NetworkHost::plug(const NetworkWire& wire, const std::vector<std::string>& addresses) {
  const Port port{nextName("port"), wire.bridge()};
  const std::string name = "eth" + std::to_string(ports_.size());
  const std::string there = "nsenter -t " + std::to_string(pid_) + " -n ip ";
  run("ip link add " + port.name + " type veth peer name " + name + " netns " +
      std::to_string(pid_));
  ports_.push_back(port);
  run("ip link set " + port.name + " master " + port.bridge + " up");
  run(there + "link set " + name + " up");
  for (const std::string& address : addresses)
    run(there + "addr add " + address + " dev " + name +
        (address.find(':') != std::string::npos ? " nodad" : ""));
}

void NetworkHost::cut(size_t interface) {
  run("ip link set " + ports_.at(interface).name + " nomaster");
}

void NetworkHost::heal(size_t interface) {
  run("ip link set " + ports_.at(interface).name + " master " + ports_.at(interface).bridge);
}

void NetworkHost::freeze() const {
  EXPECT_EQ(::kill(pid_, SIGSTOP), 0);
  siginfo_t info{};
  // Reported once the last thread has stopped.
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED), 0);
}

void NetworkHost::thaw() const {
  EXPECT_EQ(::kill(pid_, SIGCONT), 0);
}

std::string NetworkHost::end() {
  std::string said;
  try {
    for (;;) {
      const std::string text = line_->hear();
      if (text.starts_with(kFailed)) said += text;
    }
  } catch (const HostFailure&) {
    // It has gone.
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (!WIFEXITED(status))
    said += "it was ended by signal " + std::to_string(WTERMSIG(status));
  else if (WEXITSTATUS(status) != 0 && said.empty())
    said = "it failed in silence";
  return said;
}

}  // namespace peerlane::network
