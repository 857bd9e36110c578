// SPDX-License-Identifier: Apache-2.0
#include "tests/faults/torturer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "tests/faults/two_sides.h"

namespace peerlane {
namespace {

constexpr std::chrono::seconds kPatience{60};  // a bound, no pace
constexpr uint64_t kZone = Torturer::kBytes / Torturer::kZones;
// Blocks of the plans that take numbers. Neither side's distance is a multiple of the other's.
constexpr uint64_t kBlock = 1000;
constexpr uint64_t kHere = 1024;
constexpr uint64_t kThere = 1040;
constexpr uint64_t kMostNumbers = 64;

enum Kind { kList, kStrided, kIndexed, kPrepared, kOrdered, kTemporary };
constexpr const char* kNames[] = {"lists",       "strided", "by number",
                                  "plans twice", "ordered", "memory taken back"};

uint64_t firstWrong(const std::byte* a, const std::byte* b, uint64_t bytes) {
  if (std::memcmp(a, b, bytes) == 0) return bytes;
  for (uint64_t i = 0; i < bytes; ++i)
    if (a[i] != b[i]) return i;
  return bytes;
}

}  // namespace

uint64_t contentHash(const std::byte* bytes, size_t count) {
  uint64_t hash = 0x9e3779b97f4a7c15;
  for (size_t i = 0; i + 8 <= count; i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes + i, 8);
    hash = (hash ^ word) * 0x100000001b3;
    hash ^= hash >> 29;
  }
  return hash;
}

Torturer::Torturer(Context& context, const Peer& peer, const Region& mine,
                   const RemoteRegion& theirs, const std::vector<std::byte>& begins, uint64_t seed)
    : context_(context),
      peer_(peer),
      mine_(mine),
      theirs_(theirs),
      random_(seed),
      model_(begins),
      mirror_(mine.data(), mine.data() + kBytes),
      stream_(need(HostStream::create(), "stream")),
      free_(kZones) {
  std::iota(free_.begin(), free_.end(), size_t{0});
  IndexedBlocks blocks{.local = &mine_,
                       .localStride = kHere,
                       .localCount = kBytes / kHere,
                       .remote = &theirs_,
                       .remoteStride = kThere,
                       .remoteCount = kBytes / kThere,
                       .blockBytes = kBlock,
                       .maxBlocksPerPost = kMostNumbers};
  PlanOptions options;
  gets_ = need(Plan::create(peer_, Direction::kGet, blocks, options), "plan");
  options.signal = kSignal;
  puts_ = need(Plan::create(peer_, Direction::kPut, blocks, options), "plan");
}

// Sizes at which something changes: words, pages, slices of a ring, frames of a socket.
uint64_t Torturer::someBytes() {
  switch (below(4)) {
    case 0: return 1 + below(64);
    case 1: return 1 + below(4096);
    case 2: return (uint64_t{1} << (3 + below(12))) + below(3) - 1;
    default: return 1 + below(kZone / 4);
  }
}

// Apart from each other where they arrive, in no order; anywhere where they come from.
std::vector<Torturer::Piece> Torturer::somePieces(size_t zone) {
  std::vector<Piece> pieces;
  const uint64_t wanted = 1 + (below(3) == 0 ? below(200) : below(8));
  for (uint64_t to = below(64); pieces.size() < wanted;) {
    const uint64_t bytes = someBytes();
    if (to + bytes > kZone) break;
    pieces.push_back({zone * kZone + below(kZone - bytes + 1), zone * kZone + to, bytes});
    to += bytes + (below(2) == 0 ? 0 : below(500));
  }
  if (pieces.empty()) pieces.push_back({zone * kZone, zone * kZone, 1});
  std::shuffle(pieces.begin(), pieces.end(), random_);
  return pieces;
}

std::vector<Block> Torturer::blocksOf(bool isPut, const std::vector<Piece>& pieces) const {
  std::vector<Block> blocks;
  for (const Piece& piece : pieces)
    blocks.push_back({&mine_, isPut ? piece.from : piece.to, &theirs_,
                      isPut ? piece.to : piece.from, piece.bytes});
  return blocks;
}

void Torturer::fillSome(size_t zone) {
  const uint64_t bytes = someBytes();
  const uint64_t at = zone * kZone + below(kZone - bytes + 1);
  for (uint64_t i = 0; i < bytes; ++i) mirror_[at + i] = static_cast<std::byte>(random_());
  std::memcpy(mine_.data() + at, mirror_.data() + at, bytes);
}

Result<Torturer::Flight> Torturer::list(bool isPut, size_t zone) {
  Flight flight{.isPut = isPut, .zone = zone};
  Step step{.pieces = somePieces(zone)};
  PostOptions options;
  uint64_t note = 0;
  const bool isCancelled = below(6) == 0;
  if (isPut && !isCancelled) {
    if (below(3) == 0) {
      step.signal = options.notify.signalAdd = 1 + below(5);
      options.notify.signal = kSignal;
    }
    if (below(8) == 0) {
      note = step.note = random_();
      step.notifies = true;
      options.notify.message = std::as_bytes(std::span(&note, 1));
    }
  }
  const auto blocks = blocksOf(isPut, step.pieces);
  PEERLANE_ASSIGN(step.transfer, isPut ? put(peer_, blocks, options) : get(peer_, blocks, options));
  if (isCancelled) {
    step.transfer.cancel();
    flight.cancelled = true;
  }
  flight.steps.push_back(std::move(step));
  return flight;
}

Result<Torturer::Flight> Torturer::strided(bool isPut, size_t zone) {
  const uint64_t bytes = 1 + below(3000);
  const uint64_t here = bytes + below(200);
  const uint64_t there = bytes + below(200);
  const uint64_t count = 1 + below(std::min<uint64_t>(100, kZone / (bytes + 200)));
  const uint64_t at = zone * kZone;
  const StridedBlocks blocks{.local = &mine_,
                             .localOffset = at,
                             .localStride = here,
                             .remote = &theirs_,
                             .remoteOffset = at,
                             .remoteStride = there,
                             .blockBytes = bytes,
                             .count = count};
  Flight flight{.isPut = isPut, .zone = zone};
  Step step;
  for (uint64_t i = 0; i < count; ++i)
    step.pieces.push_back(
        {at + i * (isPut ? here : there), at + i * (isPut ? there : here), bytes});
  PEERLANE_ASSIGN(step.transfer, isPut ? put(peer_, blocks) : get(peer_, blocks));
  flight.steps.push_back(std::move(step));
  return flight;
}

Result<Torturer::Flight> Torturer::indexed(bool isPut, size_t zone) {
  // Numbers of blocks that lie in the zone on their side.
  const auto numbers = [&](uint64_t stride) {
    const uint64_t first = (zone * kZone + stride - 1) / stride;
    const uint64_t last = std::min(((zone + 1) * kZone - kBlock) / stride, kBytes / stride - 1);
    std::vector<uint32_t> all(last - first + 1);
    std::iota(all.begin(), all.end(), static_cast<uint32_t>(first));
    std::shuffle(all.begin(), all.end(), random_);
    return all;
  };
  std::vector<uint32_t> here = numbers(kHere);
  std::vector<uint32_t> there = numbers(kThere);
  const size_t count = 1 + below(kMostNumbers);
  here.resize(count);
  there.resize(count);
  if (below(2) == 0) {  // runs, which become one copy
    std::sort(here.begin(), here.end());
    std::sort(there.begin(), there.end());
  }
  Flight flight{.isPut = isPut, .zone = zone, .plan = isPut ? puts_ : gets_};
  Step step;
  for (size_t i = 0; i < count; ++i)
    step.pieces.push_back({isPut ? here[i] * kHere : there[i] * kThere,
                           isPut ? there[i] * kThere : here[i] * kHere, kBlock});
  step.signal = isPut ? 1 : 0;
  PEERLANE_ASSIGN(step.transfer, flight.plan.post(here, there));
  flight.steps.push_back(std::move(step));
  return flight;
}

// One list, posted twice, with other bytes the second time.
Result<Torturer::Flight> Torturer::prepared(bool isPut, size_t zone) {
  Flight flight{.isPut = isPut, .zone = zone};
  Step step{.pieces = somePieces(zone)};
  PEERLANE_ASSIGN(flight.plan, Plan::create(peer_, isPut ? Direction::kPut : Direction::kGet,
                                            std::span<const Block>(blocksOf(isPut, step.pieces))));
  PEERLANE_ASSIGN(step.transfer, flight.plan.post());
  PEERLANE_RETURN_IF_ERROR(step.transfer.wait(kPatience));
  apply(isPut, step.pieces);
  if (isPut) fillSome(zone);
  PEERLANE_ASSIGN(step.transfer, flight.plan.post());
  flight.steps.push_back(std::move(step));
  return flight;
}

// Several puts to the same places: the last one counts.
Result<Torturer::Flight> Torturer::ordered(size_t zone) {
  Flight flight{.zone = zone};
  PostOptions options;
  options.stream = stream_.get();
  for (uint64_t i = 2 + below(3); i > 0; --i) {
    Step step{.pieces = somePieces(zone)};
    PEERLANE_ASSIGN(step.transfer, put(peer_, blocksOf(true, step.pieces), options));
    flight.steps.push_back(std::move(step));
  }
  return flight;
}

// The memory a put reads is taken back while it runs: that waits, and every byte has arrived.
Status Torturer::temporary(size_t zone) {
  const uint64_t bytes = 1 + below(kZone);
  std::vector<std::byte> heap(bytes);
  for (uint64_t i = 0; i < bytes; ++i) heap[i] = static_cast<std::byte>(random_());
  PEERLANE_ASSIGN(const Region region, context_.registerRegion(heap.data(), bytes, Access::kLocal));
  const Block block{&region, 0, &theirs_, zone * kZone, bytes};
  const auto posted = put(peer_, {&block, 1});
  Status taken = context_.unregister(region, kPatience);
  PEERLANE_RETURN_IF_ERROR(posted.status());
  if (!taken.isOk()) return taken;
  if (!posted->done())
    return Status(Code::kInternal, "a region was given back while a transfer reads it");
  PEERLANE_RETURN_IF_ERROR(posted->status());
  std::memcpy(model_.data() + zone * kZone, heap.data(), bytes);
  bytes_ += bytes;
  return Status::ok();
}

void Torturer::apply(bool isPut, const std::vector<Piece>& pieces) {
  const std::vector<std::byte>& from = isPut ? mirror_ : model_;
  std::vector<std::byte>& to = isPut ? model_ : mirror_;
  for (const Piece& piece : pieces) {
    std::memcpy(to.data() + piece.to, from.data() + piece.from, piece.bytes);
    bytes_ += piece.bytes;
  }
}

// Where a cancelled transfer went, nobody knows what lies. New bytes, so that one that comes late
// shows, and the same places once more; what is beside them must not have changed.
Status Torturer::again(const Flight& flight, const Step& step) {
  ++cancelled_;
  if (flight.isPut) fillSome(flight.zone);
  const auto blocks = blocksOf(flight.isPut, step.pieces);
  PEERLANE_ASSIGN(const Transfer repair, flight.isPut ? put(peer_, blocks) : get(peer_, blocks));
  return repair.wait(kPatience);
}

Status Torturer::end(Flight& flight) {
  Status said;
  for (Step& step : flight.steps) {
    Status status = step.transfer.wait(kPatience);
    if (status.code() == Code::kCancelled && flight.cancelled) status = again(flight, step);
    if (!status.isOk()) {  // the others have to end, too
      if (said.isOk() || said.code() == Code::kPeerLost) said = status;
      continue;
    }
    apply(flight.isPut, step.pieces);
    signalled_ += step.signal;
    notified_ += step.notifies ? 1 : 0;
    noted_ += step.note;
  }
  free_.push_back(flight.zone);
  return said;
}

// Until at most so many are under way; in no order.
Status Torturer::endSome(size_t most) {
  Status said;
  while (flights_.size() > most) {
    std::swap(flights_[below(flights_.size())], flights_.back());
    Flight flight = std::move(flights_.back());
    flights_.pop_back();
    Status status = end(flight);
    if (!status.isOk() && (said.isOk() || said.code() == Code::kPeerLost)) said = status;
  }
  return said;
}

std::string Torturer::wrongHere() const {
  const uint64_t at = firstWrong(mine_.data(), mirror_.data(), kBytes);
  return at == kBytes ? "" : "byte " + std::to_string(at) + " of the own region is wrong";
}

std::string Torturer::burst(uint64_t count, const std::function<void(uint64_t)>& before) {
  Status status;
  for (uint64_t i = 0; i < count && status.isOk(); ++i) {
    if (before) before(i);
    status = endSome(below(kZones));
    if (!status.isOk()) break;
    std::swap(free_[below(free_.size())], free_.back());
    const size_t zone = free_.back();
    fillSome(zone);
    const bool isPut = below(3) != 0;
    const auto kind = static_cast<Kind>(below(6));
    if (kind == kTemporary) {
      status = temporary(zone);
    } else {
      auto flight = kind == kList       ? list(isPut, zone)
                    : kind == kStrided  ? strided(isPut, zone)
                    : kind == kIndexed  ? indexed(isPut, zone)
                    : kind == kPrepared ? prepared(isPut, zone)
                                        : ordered(zone);
      // A plan whose last post runs, a peer that has not yet taken what it was told.
      if (flight.status().code() == Code::kTryAgain) continue;
      status = flight.status();
      if (status.isOk()) {
        free_.pop_back();
        flights_.push_back(std::move(*flight));
      }
    }
    ++operations_[kind];
  }
  const Status rest = endSome(0);
  if (status.isOk() || status.code() == Code::kPeerLost) {
    if (!rest.isOk()) status = rest;
  }
  lost_ = status.code() == Code::kPeerLost;
  if (lost_) return "";
  return status.isOk() ? wrongHere() : status.toString();
}

std::string Torturer::summary() const {
  std::string text;
  for (size_t i = 0; i < std::size(kNames); ++i)
    text += std::to_string(operations_[i]) + " " + kNames[i] + ", ";
  return text + std::to_string(cancelled_) + " cancelled, " + std::to_string(bytes_ >> 20) + " MiB";
}

}  // namespace peerlane
