// SPDX-License-Identifier: Apache-2.0
//
// The other process of the torture. Arguments: ROUTE SEED. The first line of its input is a ticket;
// it connects, offers one region on channel 1, takes one, says "ready", and does what further lines
// ask for: operations of its own on the region it took, while the other side does the same to what
// it offered.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <iostream>
#include <sstream>
#include <vector>

#include "tests/faults/torturer.h"
#include "tests/faults/two_sides.h"

namespace peerlane {
namespace {

constexpr std::chrono::seconds kLong{60};

class TorturePeer {
 public:
  TorturePeer(const std::string& route, uint64_t seed, const std::string& ticket)
      : route_(route),
        context_(need(Context::create({configOfRoute(route), {}, ""}), "context")),
        peer_(need(context_->connect(ticket), "connect")),
        offered_(*context_, route, Torturer::kBytes),
        mine_(*context_, route, Torturer::kBytes) {
    tellReference(peer_, 1, offered_.region());
    theirs_ = hearReference(peer_, 1);
    torturer_ = std::make_unique<Torturer>(*context_, peer_, mine_.region(), theirs_,
                                           std::vector<std::byte>(Torturer::kBytes), seed);
  }

  std::string obey(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    uint64_t number = 0;
    words >> what >> number;
    if (what == "burst") {
      const std::string wrong = torturer_->burst(number);
      return wrong.empty() ? "well" : wrong;
    }
    if (what == "holds") return std::to_string(contentHash(offered_.data(), offered_.size()));
    if (what == "expects")
      return std::to_string(contentHash(torturer_->model().data(), torturer_->model().size()));
    if (what == "told")
      return std::to_string(torturer_->signalled()) + " " + std::to_string(torturer_->notified()) +
             " " + std::to_string(torturer_->noted());
    if (what == "signal") {
      const Signal signal = need(Signal::create(peer_, Torturer::kSignal), "signal");
      const Status status = signal.wait(number, kLong);
      return status.isOk() ? std::to_string(signal.value()) : status.toString();
    }
    if (what == "notes") return notes(number);
    if (what == "victim") return victim(number);
    return "what is '" + line + "'?";
  }

 private:
  // The sum of what so many further notifications say; there are no more.
  std::string notes(uint64_t count) {
    uint64_t sum = 0;
    for (; count > 0; --count) {
      const auto heard = waitNotification(peer_, kLong);
      if (!heard.isOk()) return heard.status().toString();
      uint64_t note = 0;
      std::memcpy(&note, heard->message.data(), sizeof note);
      sum += note;
    }
    return pollNotification(peer_).isOk() ? "more than expected" : std::to_string(sum);
  }
  // Memory that the other side writes to until it is taken back after so many rounds of it.
  std::string victim(uint64_t rounds) {
    constexpr size_t kSmall = 64 << 10;
    // It stays mapped here by another registration, so that a late write shows.
    const SideMemory kept(*context_, route_, kSmall);
    std::byte* const bytes = kept.data();
    const Region region =
        need(context_->registerRegion(bytes, kSmall, Access::kRemoteReadWrite), "victim");
    tellReference(peer_, 5, region);
    if (!peer_.receiveMessage(6, kLong).isOk()) return "no word of the first put";
    for (; rounds > 0; --rounds) bytes[rounds % kSmall] = std::byte{1};
    const Status taken = context_->unregister(region, kLong);
    if (!taken.isOk()) return taken.toString();
    std::memset(bytes, 0xee, kSmall);
    tellReference(peer_, 6, region);  // any word will do: it is over
    if (!peer_.receiveMessage(6, kLong).isOk()) return "no word of the last put";
    for (size_t i = 0; i < kSmall; ++i)
      if (bytes[i] != std::byte{0xee}) return "written to after it was taken back";
    const Status gone = context_->unregister(kept.region(), kLong);
    return gone.isOk() ? "taken" : gone.toString();
  }

  const std::string route_;
  std::unique_ptr<Context> context_;
  Peer peer_;
  SideMemory offered_;
  SideMemory mine_;
  RemoteRegion theirs_;
  std::unique_ptr<Torturer> torturer_;
};

int run(const std::string& route, uint64_t seed) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::string line;
  if (!std::getline(std::cin, line)) return 2;
  TorturePeer peer(route, seed, line);
  std::cout << "ready" << std::endl;
  while (std::getline(std::cin, line)) std::cout << peer.obey(line) << std::endl;
  return 0;
}

}  // namespace
}  // namespace peerlane

int main(int argc, char** argv) {
  return argc < 3 ? 2 : peerlane::run(argv[1], std::stoull(argv[2]));
}
