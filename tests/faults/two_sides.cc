// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/two_sides.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdio>
#include <cstdlib>

namespace peerlane {
namespace {

constexpr std::chrono::seconds kLong{60};  // a bound that no test lets happen
constexpr uint32_t kNeverSent = 999;       // a channel
constexpr size_t kThreads = 10;

// The parts of kBytes that the threads use, so that nobody waits for nobody.
constexpr uint64_t kPart = Traffic::kBytes / 4;

Status ended(const Result<Transfer>& transfer) {
  return transfer.isOk() ? transfer->wait(kLong) : transfer.status();
}

}  // namespace

void giveUp(const char* what, const Status& status) {
  std::fprintf(stderr, "%s: %s\n", what, status.toString().c_str());
  std::abort();
}

void hangUp() {
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_un address{};
    socklen_t bytes = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (::getpeername(fd, raw, &bytes) == 0 && address.sun_family == AF_UNIX)
      ::shutdown(fd, SHUT_RDWR);
  }
}

Config configOfRoute(const std::string& route) {
  Config config;
  config.links = {route == "tcp" ? "tcp" : "shm"};
  if (route == "mapped") config.shmEngine = ShmEngine::kMapped;
  if (route == "cma") config.shmEngine = ShmEngine::kCma;
  if (route == "ring") config.shmEngine = ShmEngine::kRing;
  return config;
}

SideMemory::SideMemory(Context& context, const std::string& route, size_t bytes) : bytes_(bytes) {
  if (route == "cma" || route == "ring") {
    own_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = static_cast<std::byte*>(own_);
    region_ = need(context.registerRegion(own_, bytes, Access::kRemoteReadWrite), "register");
  } else {
    region_ = need(context.allocate(bytes), "allocate");
    data_ = region_.data();
  }
}

SideMemory::~SideMemory() {
  if (own_ != nullptr) ::munmap(own_, bytes_);
}

void tellReference(const Peer& peer, uint32_t channel, const Region& region) {
  if (Status sent = peer.sendMessage(channel, region.share()); !sent.isOk())
    giveUp("reference", sent);
}

RemoteRegion hearReference(const Peer& peer, uint32_t channel) {
  return need(peer.importRegion(need(peer.receiveMessage(channel, kLong), "reference")), "import");
}

template <typename Step>
void Traffic::start(const char* what, Step step) {
  End& end = ends_.emplace_back();
  end.what = what;
  running_.fetch_add(1);
  threads_.emplace_back([this, &end, step = std::move(step)]() mutable {
    for (uint64_t round = 0;; ++round) {
      Status status = step(round);
      if (status.isOk()) {
        done_.fetch_add(1, std::memory_order_relaxed);
        continue;
      }
      end.when = Clock::now();
      end.status = std::move(status);
      running_.fetch_sub(1);
      return;
    }
  });
}

Traffic::Traffic(Context& context, const Peer& peer, const Region& mine, const RemoteRegion& theirs)
    : peer_(peer), mine_(mine), theirs_(theirs) {
  const Block block{&mine_, 0, &theirs_, 0, 8192};
  PlanOptions options;
  options.signal = 1;
  plan_ = need(Plan::create(peer_, Direction::kPut, {&block, 1}, options), "plan");
  ranks_ = need(Communicator::create(context, peer_), "communicator");
  const Rank other = 1 - ranks_->rank();
  const Signal told = need(Signal::create(peer_, 1), "signal");
  const Signal silent = need(Signal::create(peer_, 63), "signal");
  ends_.reserve(kThreads);

  start("put", [this](uint64_t round) {
    const Block piece{&mine_, kPart, &theirs_, kPart, round % 3 == 0 ? kPart : 4096};
    return ended(put(peer_, {&piece, 1}));
  });
  start("get", [this](uint64_t round) {
    const Block piece{&mine_, 0, &theirs_, kPart, round % 3 == 0 ? kPart : 4096};
    return ended(get(peer_, {&piece, 1}));
  });
  start("post of a plan", [this](uint64_t) { return ended(plan_.post()); });
  start("put that notifies", [this](uint64_t round) {
    const Block piece{&mine_, 2 * kPart, &theirs_, 2 * kPart, 4096};
    PostOptions told_;
    told_.notify.message = std::span<const std::byte>(mine_.data(), 64);
    told_.notify.tag = static_cast<uint32_t>(round);
    return ended(put(peer_, {&piece, 1}, told_));
  });
  start("wait for a notification",
        [this](uint64_t) { return waitNotification(peer_, kLong).status(); });
  start("wait for a signal", [told](uint64_t round) { return told.wait(round + 1, kLong); });
  start("wait for a signal that nobody gives",
        [silent](uint64_t) { return silent.wait(1, kLong); });
  start("wait for a message that nobody sends",
        [this](uint64_t) { return peer_.receiveMessage(kNeverSent, kLong).status(); });
  static constexpr uint64_t kSizes[] = {64, kPart, 4096, 65536, 0};
  start("send", [this, other](uint64_t round) {
    return ended(ranks_->send(other, mine_, 0, kSizes[round % 5]));
  });
  start("receive", [this, other](uint64_t round) {
    return ended(ranks_->recv(other, mine_, 3 * kPart, kSizes[round % 5]));
  });
}

std::vector<Traffic::End> Traffic::ends() {
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
  return ends_;
}

Traffic::~Traffic() {
  (void)ends();
}

}  // namespace peerlane
