// SPDX-License-Identifier: Apache-2.0
//
// The other process of the fault tests. Arguments: ROUTE [BYTES] [undumpable] [private]
// [strict] [user=UID] [namespace]. The first line of its input is a ticket; it connects, exchanges
// one region with whoever listens (channel 1), says "ready", and does what further lines ask for.
// Ends with its input. "namespace": in a pid namespace of its own. With the one argument "idle" it
// is a program that has nothing to do with the library.
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "peerlane/channel/port/port_channel.h"
#include "tests/faults/footprint.h"
#include "tests/faults/two_sides.h"

namespace peerlane {
namespace {

constexpr std::chrono::seconds kLong{60};

void say(const std::string& line) {
  std::cout << line << std::endl;
}
std::string nameOf(const Status& status) {
  return codeName(status.code());
}

// Has what was open when it was forked, and does nothing.
pid_t childThatStays() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    for (;;) ::pause();
  }
  return child;
}

class FaultPeer {
 public:
  FaultPeer(const std::string& route, size_t bytes, Config config, const std::string& ticket) {
    auto context = Context::create({std::move(config), {}, ""});
    context_ = need(std::move(context), "context");
    memory_ = std::make_unique<SideMemory>(*context_, route, bytes);
    say(meet(ticket));
  }

  // The answer.
  std::string obey(const std::string& what) {
    if (what.starts_with("port ")) return port(what.substr(5));
    if (what == "traffic") {
      traffic_.emplace(*context_, peer_, memory_->region(), theirs_);
      return "running";
    }
    if (what == "put for ever" || what == "get for ever")
      return moveForEver(what == "put for ever");
    if (what == "put" || what == "get") return nameOf(move(what == "put"));
    if (what.starts_with("fill ")) {
      std::memset(memory_->data(), std::stoi(what.substr(5)), memory_->size());
      return "filled";
    }
    if (what.starts_with("cycles ")) return cycles(std::stoi(what.substr(7)));
    if (what == "route") {
      const Route route = peer_.route();
      return "link " + route.link + " private " + route.privateEngine + " engine " +
             theirs_.engine() + " fallbacks " + std::to_string(fallbacks());
    }
    if (what == "state") return peer_.state();
    if (what.starts_with("meet ")) return meet(what.substr(5));
    if (what == "hang up") {
      hangUp();
      return "hung up";
    }
    if (what == "fork") return std::to_string(childThatStays());
    if (what == "forbid reading") {
      ::prctl(PR_SET_DUMPABLE, 0);
      return "forbidden";
    }
    if (what == "exec") ::execl("/proc/self/exe", "fault_peer", "idle", nullptr);
    if (what == "unregister")
      return nameOf(context_->unregister(memory_->region(), std::chrono::milliseconds(50)));
    if (what == "look") return look();
    if (what == "footprint") {
      const Footprint held = Footprint::atRest(*context_, std::this_thread::yield);
      return std::to_string(held.descriptors) + " " + std::to_string(held.sharedMappings);
    }
    if (what == "turn to 3") {  // another region of the other side, from now on
      theirs_ = hearReference(peer_, 3);
      return theirs_.prepare().isOk() ? "turned" : "not there";
    }
    return "what is '" + what + "'?";
  }

 private:
  std::string meet(const std::string& ticket) {
    auto peer = context_->connect(ticket);
    if (!peer.isOk())
      return "refused " + nameOf(peer.status()) + " " + std::string(peer.status().message());
    peer_ = *peer;
    tellReference(peer_, 1, memory_->region());
    theirs_ = hearReference(peer_, 1);
    const Status prepared = theirs_.prepare();
    if (!prepared.isOk())
      return "refused " + nameOf(prepared) + " " + std::string(prepared.message());
    return "ready";
  }
  Status move(bool isPut) {
    const Block block{&memory_->region(), 0, &theirs_, 0,
                      std::min<uint64_t>(memory_->size(), theirs_.bytes())};
    const auto posted = isPut ? put(peer_, {&block, 1}) : get(peer_, {&block, 1});
    return posted.isOk() ? posted->wait(kLong) : posted.status();
  }
  // A service with a channel of tag 7 between the two regions; "send": it puts and signals for
  // ever, "wait": it waits, "nothing": it does nothing more, its proxy neither.
  std::string port(const std::string& what) {
    service_ = need(ProxyService::create(*context_), "service");
    const MemoryId local = need(service_->addMemory(memory_->region()), "local memory");
    const MemoryId remote = need(service_->addMemory(theirs_), "remote memory");
    const PortConnection connection = need(service_->connect(peer_), "connection");
    const PortSemaphore semaphore = need(service_->addSemaphore(connection, 7, kLong), "semaphore");
    const PortChannel channel = need(service_->channel(semaphore, remote, local), "channel");
    if (what == "nothing") return "paired";
    if (const Status started = service_->start(); !started.isOk()) giveUp("start", started);
    const uint64_t bytes = std::min<uint64_t>(memory_->size(), theirs_.bytes());
    callers_.emplace_back([channel, bytes, sends = what == "send"] {
      const port::ThisThread thread;
      const PortChannelHandle handle = channel.deviceHandle();
      while (sends ? handle.putWithSignalAndFlush(thread, 0, 0, bytes).outcome == PortOutcome::kOk
                   : handle.wait(thread).outcome == PortOutcome::kOk) {
      }
    });
    return "paired";
  }
  // Each put brings other bytes, so that one that is cut shows.
  std::string moveForEver(bool isPut) {
    for (int round = 0;; ++round) {
      if (round == 2) say("moving");
      std::memset(memory_->data(), round % 256, memory_->size());
      if (Status status = move(isPut); !status.isOk()) return "ended " + nameOf(status);
    }
  }
  // What all of the memory is filled with.
  std::string look() const {
    const std::byte* all = memory_->data();
    const bool same = std::memcmp(all, all + 1, memory_->size() - 1) == 0;
    return same ? std::to_string(std::to_integer<int>(all[0])) : "mixed";
  }
  // Regions that come and go: imported, written, given back by the owner.
  std::string cycles(int count) {
    for (int i = 0; i < count; ++i) {
      const RemoteRegion each = hearReference(peer_, 2);
      const Block block{&memory_->region(), 0, &each, 0, 4096};
      const auto posted = put(peer_, {&block, 1});
      const Status status = posted.isOk() ? posted->wait(kLong) : posted.status();
      if (!status.isOk()) return "cycle " + std::to_string(i) + ": " + status.toString();
      if (!peer_.sendMessage(2, {}).isOk()) return "no answer";
    }
    return "cycled";
  }
  uint64_t fallbacks() const {
    const std::string text = context_->metrics();
    const std::string name = "\npeerlane_fallbacks_total ";
    const size_t at = text.find(name);
    return at == std::string::npos ? 0 : std::stoull(text.substr(at + name.size()));
  }

  std::unique_ptr<Context> context_;
  Peer peer_;
  std::unique_ptr<SideMemory> memory_;
  RemoteRegion theirs_;
  std::optional<Traffic> traffic_;
  std::unique_ptr<ProxyService> service_;
  std::vector<std::thread> callers_;  // nobody joins: the process ends as it is
};

// Goes on in the first process of a pid namespace, with a /proc of its own.
void enterNamespace() {
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0)
    giveUp("namespace", Status::system(errno, "unshare"));
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("proc", "/proc", "proc", 0, nullptr) != 0)
      giveUp("namespace", Status::system(errno, "mount"));
    return;
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  std::_Exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

int beIdle() {
  for (std::string line; std::getline(std::cin, line);) say("idle");
  return 0;
}

int run(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (std::string_view(argv[1]) == "idle") return beIdle();
  std::ios::sync_with_stdio(false);
  const std::string route = argv[1];
  size_t bytes = Traffic::kBytes;
  Config config = configOfRoute(route);
  if (route == "any") config = Config();
  std::string kind = route;  // of memory
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "private") {
      kind = "ring";
    } else if (word == "undumpable") {
      ::prctl(PR_SET_DUMPABLE, 0);
    } else if (word == "namespace") {
      enterNamespace();
    } else if (word == "strict") {
      config.strict = true;
    } else if (word.starts_with("user=")) {
      const auto user = static_cast<uid_t>(std::stoul(word.substr(5)));
      if (::setgid(user) != 0 || ::setuid(user) != 0) return 2;
      // A change of user clears it; a program that a user starts has it.
      ::prctl(PR_SET_DUMPABLE, 1);
    } else {
      bytes = std::stoul(word);
    }
  }
  std::string line;
  if (!std::getline(std::cin, line)) return 2;
  FaultPeer peer(kind, bytes, config, line);
  while (std::getline(std::cin, line)) say(peer.obey(line));
  std::_Exit(0);  // without goodbye: what runs, runs for ever
}

}  // namespace
}  // namespace peerlane

int main(int argc, char** argv) {
  return argc < 2 ? 2 : peerlane::run(argc, argv);
}
