// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/host/bench_connect.h"

#include <dirent.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "tools/bench/sides/bench_row.h"
#include "tools/ceiling/ceiling_copy.h"

namespace peerlane::bench {
namespace {

constexpr uint32_t kPeerCount = 64;
constexpr auto kConnectPatience = std::chrono::seconds(20);

class ConnectRow {
 public:
  ConnectRow(BenchPair& pair, uint64_t bytes)
      : pair_(pair), endpoint_(pair.endpoint()), bytes_(bytes) {}

  // Closed before the next one, outside the clock: every round is a new connection.
  Status prepare() {
    word_ = 0x1122334455667788ull + ++round_;
    std::memset(endpoint_.source().data(), 0, bytes_);
    std::memcpy(endpoint_.source().data(), &word_, std::min<uint64_t>(sizeof(word_), bytes_));
    return Status::ok();
  }
  Status sample(Samples& samples) {
    const RegionReference::Encoded reference =
        endpoint_.otherDestination().remote.reference().encode();
    const Clock::time_point start = Clock::now();
    PEERLANE_ASSIGN(const Peer peer, endpoint_.context().connect(pair_.childTicket()));
    const double connected = microsecondsSince(start);
    PEERLANE_ASSIGN(const RemoteRegion remote, peer.importRegion(reference));
    const Block block{&endpoint_.source(), 0, &remote, 0, bytes_};
    PEERLANE_ASSIGN(const Transfer posted, put(peer, {&block, 1}));
    PEERLANE_RETURN_IF_ERROR(posted.wait(kConnectPatience));
    samples.add(microsecondsSince(start));
    connectOnly_.add(connected);

    PEERLANE_RETURN_IF_ERROR(pair_.pipe().send(kAcceptPeer, ConnectCheck{word_}));
    PEERLANE_ASSIGN(const BenchMessage answer, receiveKind(pair_.pipe(), kWrongIs));
    PEERLANE_ASSIGN(const uint64_t wrong, answer.as<uint64_t>());
    wrong_ += wrong;
    peer.close();
    return Status::ok();
  }
  uint64_t takeWrong() { return std::exchange(wrong_, 0); }
  double connectMedian() const { return connectOnly_.median(); }

 private:
  BenchPair& pair_;
  BenchEndpoint& endpoint_;
  const uint64_t bytes_;
  uint64_t round_ = 0;
  uint64_t word_ = 0;
  uint64_t wrong_ = 0;
  Samples connectOnly_;
};

Result<Footprint> askForPeers(BenchPair& pair, uint32_t count) {
  const std::string ticket = pair.endpoint().context().ticket();
  const ExtraPeersRequest request{count};
  std::vector<std::byte> content(sizeof(request) + ticket.size());
  std::memcpy(content.data(), &request, sizeof(request));
  std::memcpy(content.data() + sizeof(request), ticket.data(), ticket.size());
  PEERLANE_RETURN_IF_ERROR(pair.pipe().send(kExtraPeers, content));
  PEERLANE_ASSIGN(const BenchMessage answer, receiveKind(pair.pipe(), kFootprintIs));
  return answer.as<Footprint>();
}

// The cost of one more peer here and there. Every peer is used in both directions before the second
// look, so that everything made at first use is counted.
Status addFootprint(BenchPair& pair, BenchRow& row) {
  // The first extra peers bring the things made once: heap, buffers, the list of peers.
  std::vector<Peer> peers;
  const auto takePeers = [&](uint32_t count) -> Result<Footprint> {
    PEERLANE_ASSIGN(const Footprint other, askForPeers(pair, count));
    for (uint32_t i = 0; i < count; ++i) {
      PEERLANE_ASSIGN(Peer peer, pair.endpoint().context().accept(kConnectPatience));
      PEERLANE_ASSIGN(const Transfer told, addSignal(peer, 0));
      PEERLANE_RETURN_IF_ERROR(told.wait(kConnectPatience));
      peers.push_back(std::move(peer));
    }
    return other;
  };
  PEERLANE_RETURN_IF_ERROR(takePeers(2).status());
  const Footprint before = footprintOfThisProcess();
  PEERLANE_ASSIGN(const Footprint other, takePeers(kPeerCount));
  const Footprint after = footprintOfThisProcess();
  const auto each = [](uint64_t low, uint64_t high) {
    return (static_cast<double>(high) - static_cast<double>(low)) / kPeerCount;
  };
  row.extras["resident_bytes_per_peer"] = each(before.residentBytes, after.residentBytes);
  row.extras["fds_per_peer"] = each(before.descriptors, after.descriptors);
  row.extras["resident_bytes_per_peer_connecting"] =
      static_cast<double>(other.residentBytes) / kPeerCount;
  row.extras["fds_per_peer_connecting"] = static_cast<double>(other.descriptors) / kPeerCount;
  return Status::ok();
}

}  // namespace

Footprint footprintOfThisProcess() {
  Footprint footprint;
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  statm >> size >> resident;
  footprint.residentBytes = resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  if (DIR* folder = ::opendir("/proc/self/fd")) {
    while (const dirent* entry = ::readdir(folder))
      footprint.descriptors += entry->d_name[0] != '.';
    ::closedir(folder);
  }
  return footprint;
}

Status ConnectPartner::acceptPeer(BenchPipe& pipe, const ConnectCheck& check) {
  PEERLANE_ASSIGN(const Peer peer, endpoint_.context().accept(kConnectPatience));
  uint64_t word = 0;
  std::memcpy(&word, endpoint_.destination().data(), sizeof(word));
  std::memset(endpoint_.destination().data(), 0xee, sizeof(word));
  return pipe.send(kWrongIs, uint64_t{word == check.expected ? 0u : sizeof(word)});
}

Status ConnectPartner::connectMore(BenchPipe& pipe, uint32_t count, const std::string& ticket) {
  std::vector<Extra> made(count);
  for (Extra& extra : made) {
    ContextOptions options;
    options.config = endpoint_.context().config();
    PEERLANE_ASSIGN(extra.context, Context::create(std::move(options)));
  }
  const Footprint before = footprintOfThisProcess();
  for (Extra& extra : made) {
    PEERLANE_ASSIGN(extra.peer, extra.context->connect(ticket));
    PEERLANE_ASSIGN(const Transfer told, addSignal(extra.peer, 0));
    PEERLANE_RETURN_IF_ERROR(told.wait(kConnectPatience));
  }
  const Footprint after = footprintOfThisProcess();
  for (Extra& extra : made) extra_.push_back(std::move(extra));
  return pipe.send(kFootprintIs, Footprint{after.residentBytes - before.residentBytes,
                                           after.descriptors - before.descriptors});
}

Status benchConnect(BenchPair& pair, const BenchOptions& options, BenchReport& report) {
  for (const uint64_t bytes : sweep(options)) {
    ConnectRow connect(pair, bytes);
    Contest contest = contestFor(options, bytes);
    contest.prepare = [&](Contender, bool) { return connect.prepare(); };
    contest.sample = [&](Contender, Samples& samples) { return connect.sample(samples); };
    contest.check = [&](Contender) -> Result<uint64_t> { return connect.takeWrong(); };
    contest.withCeiling = false;
    contest.checkAll = true;
    PEERLANE_ASSIGN(Outcome outcome, runContest(contest));
    BenchRow row = rowFor(pair, options, bytes);
    row.isLatency = true;
    row.outcome = std::move(outcome);
    row.extras["connect_only_us"] = connect.connectMedian();
    PEERLANE_RETURN_IF_ERROR(addFootprint(pair, row));
    report.add(std::move(row));
  }
  return Status::ok();
}

}  // namespace peerlane::bench
