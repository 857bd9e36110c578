// SPDX-License-Identifier: Apache-2.0
//
// Traffic in both directions between processes, with every byte looked at (traffic_side.h).
//
//   guest_traffic listen ADDRESS [PEERS=N] [ROUNDS=N] [BYTES=N] [END=lost] [AGAIN=yes]
//   guest_traffic dial   ADDRESS            the same
//
// ROUNDS (0): 0 is until another end stops. END=lost: the connection has to end by itself, with
// PeerLost or PeerSilent; of several peers that of one, and twenty rounds later this end stops the
// others. AGAIN=yes: what the link fails is made again. All ends are told the same, but for END.
//
// It says "round N" for the first, tenth, and each further tenth round; at the end how it ended and
// "moved N bytes". The status is 0 if it ended as it had to.
#include <csignal>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>

#include "tests/guest/traffic/traffic_side.h"

namespace peerlane::guest {
namespace {

constexpr uint64_t kRoundsAfterALoss = 20;
const std::string kSecret(64, '5');  // of no use but for tests

struct Wanted {
  uint64_t peers = 1;
  TrafficPlan plan{.rounds = 0, .bytes = 1 << 20, .again = false};
  bool endsLost = false;
};

class Report {
 public:
  void say(const std::string& line) {
    const std::lock_guard lock(mutex_);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

 private:
  std::mutex mutex_;
};

Report report;

int64_t milliseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
}

// One connection of this process, and the thread that turns it.
struct Lane {
  std::unique_ptr<TrafficSide> side;
  std::thread thread;
  std::atomic<bool> hasEnded = false;
  Status end;
  int64_t silence = 0;  // from the last round to the end, in ms
};

void watch(Lane& lane, size_t index) {
  std::thread& turned = lane.thread;
  turned = std::thread([&lane, index] {
    lane.end = lane.side->run();
    lane.silence = milliseconds(Clock::now() - lane.side->lastDone());
    report.say("lane " + std::to_string(index) + " ended after round " +
               std::to_string(lane.side->done()) + ", " + std::to_string(lane.silence) +
               " ms later: " + lane.end.toString());
    lane.hasEnded.store(true, std::memory_order_release);
  });
}

bool isLost(const Status& status) {
  return status.code() == Code::kPeerLost || status.code() == Code::kPeerSilent;
}

// Says how far they are, and stops the others when one is lost.
void turn(std::vector<std::unique_ptr<Lane>>& lanes, const Wanted& wanted) {
  std::vector<uint64_t> said(lanes.size());
  std::map<size_t, uint64_t> until;
  for (bool anyRuns = true; anyRuns;) {
    anyRuns = false;
    bool anyLost = false;
    for (size_t i = 0; i < lanes.size(); ++i) {
      const uint64_t done = lanes[i]->side->done();
      if (done != 0 && (said[i] == 0 || done / 10 > said[i] / 10)) {
        report.say("lane " + std::to_string(i) + " round " + std::to_string(done));
        said[i] = done;
      }
      const bool hasEnded = lanes[i]->hasEnded.load(std::memory_order_acquire);
      anyRuns = anyRuns || !hasEnded;
      anyLost = anyLost || (hasEnded && isLost(lanes[i]->end));
    }
    for (size_t i = 0; anyLost && wanted.endsLost && i < lanes.size(); ++i) {
      const uint64_t done = lanes[i]->side->done();
      if (done >= until.try_emplace(i, done + kRoundsAfterALoss).first->second)
        lanes[i]->side->stop();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // of what it says, no pace
  }
}

// Exactly one is lost, or none.
Status judge(const std::vector<std::unique_ptr<Lane>>& lanes, const Wanted& wanted) {
  size_t lost = 0;
  for (const auto& lane : lanes) {
    if (lane->end.isOk()) continue;
    if (!wanted.endsLost || !isLost(lane->end)) return lane->end;
    ++lost;
  }
  if (lost == (wanted.endsLost ? 1 : 0)) return Status::ok();
  return Status(Code::kCorrupt, std::to_string(lost) + " connections were lost");
}

// The other side may not listen yet.
Result<Peer> dial(Context& context, const std::string& address) {
  for (const auto begin = Clock::now();;) {
    auto peer = context.connect(address, kSecret, kPatience);
    if (peer.isOk() || peer.status().code() != Code::kUnavailable ||
        Clock::now() - begin > kPatience)
      return peer;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

Status run(const std::string& role, const std::string& address, const Wanted& wanted) {
  ContextOptions options;
  options.secret = kSecret;
  if (role == "listen") options.listen = {address};
  PEERLANE_ASSIGN(const auto context, Context::create(std::move(options)));
  if (role == "listen") report.say("listens");
  std::vector<std::unique_ptr<Lane>> lanes;
  for (uint64_t i = 0; i < wanted.peers; ++i) {
    auto peer = role == "listen" ? context->accept(kPatience) : dial(*context, address);
    if (!peer.isOk()) return peer.status();
    report.say("link " + peer->route().link);
    lanes.push_back(std::make_unique<Lane>());
    PEERLANE_ASSIGN(lanes.back()->side,
                    TrafficSide::create(*context, *peer, role == "listen", wanted.plan));
  }
  for (size_t i = 0; i < lanes.size(); ++i) watch(*lanes[i], i);
  turn(lanes, wanted);
  uint64_t moved = 0;
  uint64_t madeAgain = 0;
  for (const auto& lane : lanes) {
    lane->thread.join();
    moved += lane->side->moved();
    madeAgain += lane->side->madeAgain();
  }
  for (const auto& lane : lanes)
    if (lane->end.code() == Code::kTimeout) report.say(context->dump());
  report.say("made again " + std::to_string(madeAgain));
  report.say("moved " + std::to_string(moved) + " bytes");
  return judge(lanes, wanted);
}

Result<Wanted> wantedFrom(std::span<char*> words) {
  Wanted wanted;
  for (const std::string word : words) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : word.substr(equals + 1);
    const bool isNumber =
        !value.empty() && value.size() < 10 && value.find_first_not_of("0123456789") == value.npos;
    if (name == "PEERS" && isNumber) {
      wanted.peers = std::stoull(value);
    } else if (name == "ROUNDS" && isNumber) {
      wanted.plan.rounds = std::stoull(value);
    } else if (name == "BYTES" && isNumber && std::stoull(value) >= 8) {
      wanted.plan.bytes = std::stoull(value);
    } else if (word == "END=lost") {
      wanted.endsLost = true;
    } else if (word == "AGAIN=yes") {
      wanted.plan.again = true;
    } else {
      return Status(
          Code::kInvalidArgument,
          "'" + word + "' is not PEERS=N, ROUNDS=N, BYTES=N (8 or more), END=lost or AGAIN=yes");
    }
  }
  return wanted;
}

int main(int argc, char** argv) {
  const std::string role = argc > 2 ? argv[1] : "";
  if (role != "listen" && role != "dial") {
    std::fprintf(stderr, "usage: %s listen|dial ADDRESS [NAME=VALUE ...]\n", argv[0]);
    return 2;
  }
  const auto wanted = wantedFrom(std::span(argv + 3, argv + argc));
  const Status ended = wanted.isOk() ? run(role, argv[2], *wanted) : wanted.status();
  if (ended.isOk()) return 0;
  std::fprintf(stderr, "guest_traffic %s: %s\n", role.c_str(), ended.toString().c_str());
  return 1;
}

}  // namespace
}  // namespace peerlane::guest

int main(int argc, char** argv) {
  return peerlane::guest::main(argc, argv);
}
