// SPDX-License-Identifier: Apache-2.0
//
// Hosts for tests, on one machine: a NetworkHost is a process in a network namespace of its own,
// with its own /dev/shm. Names of Unix sockets belong to the network, so hosts share none, and no
// interface. A NetworkWire is a bridge to which hosts are plugged in; a host that is cut from it
// sees no loss of carrier, as on a switch. Needs root, or the right to make user namespaces;
// all of it ends with the test's process. The test's process must have no thread besides its first
// one.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "peerlane/peerlane.h"

namespace peerlane::network {

// What a host says when it cannot go on; its test fails with it.
struct HostFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void require(bool condition, const std::string& text) {
  if (!condition) throw HostFailure(text);
}
inline void must(const Status& status) {
  require(status.isOk(), status.toString());
}
template <typename Value>
Value must(Result<Value> result) {
  must(result.status());
  return std::move(result).value();
}

// Runs a command of iproute2; HostFailure with its words when it fails.
void run(const std::string& command);

// Short texts between the test and one of its hosts, in order.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  void tell(const std::string& text) const;
  // The next one. HostFailure after a minute, and when the other end has gone.
  std::string hear() const;
  void expect(const std::string& text) const;

 private:
  int fd_;
};

// A fixture: makes the test's own namespaces once, or says why there are none. NETNS=skip in the
// environment skips the tests.
class NetworkTest : public testing::Test {
 protected:
  void SetUp() override;
};

class NetworkWire {
 public:
  NetworkWire();
  ~NetworkWire();
  NetworkWire(const NetworkWire&) = delete;
  NetworkWire& operator=(const NetworkWire&) = delete;
  const std::string& bridge() const { return bridge_; }

 private:
  const std::string bridge_;
};

class NetworkHost {
 public:
  // `role` runs in the host, and ends it by returning or throwing; first of all it should hear
  // "begin", which begin() tells it once it is plugged in.
  using Role = std::function<void(const Line& test)>;
  explicit NetworkHost(const Role& role);
  ~NetworkHost();
  NetworkHost(const NetworkHost&) = delete;
  NetworkHost& operator=(const NetworkHost&) = delete;

  // The host gets interface eth0, eth1, ... with these addresses ("10.0.0.1/24", "fd00::1/64").
  void plug(const NetworkWire& wire, const std::vector<std::string>& addresses);
  // Nothing passes any more, in silence; or again.
  void cut(size_t interface = 0);
  void heal(size_t interface = 0);
  void begin() { line().tell("begin"); }
  const Line& line() const { return *line_; }
  // SIGSTOP, and every thread of it stands still; thaw() ends that.
  void freeze() const;
  void thaw() const;
  // Waits for its end: what it said last if it failed, else empty.
  std::string end();

 private:
  struct Port {
    std::string name;
    std::string bridge;
  };
  std::unique_ptr<Line> line_;
  int fd_ = -1;
  pid_t pid_ = -1;
  std::vector<Port> ports_;
};

}  // namespace peerlane::network
