// SPDX-License-Identifier: Apache-2.0
//
// Torturer: one side of the torture. Random operations on a peer's region that nobody else writes
// to, beside a model of both ends that memcpy holds: lists, strides, plans with and without fresh
// block numbers, ordered posts, gets of what was put, cancelled posts, memory that is taken back
// under way. Both regions lie in zones; an operation has one on each side to itself until it ended.
// The same seed gives the same operations, but for what depends on when one ends. External
// synchronization required.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "peerlane/peerlane.h"

namespace peerlane {

// Of all bytes, by content and place.
uint64_t contentHash(const std::byte* bytes, size_t count);

class Torturer {
 public:
  static constexpr size_t kBytes = 4 << 20;  // of every region here
  static constexpr size_t kZones = 8;
  static constexpr uint32_t kSignal = 2;

  // `mine` is written by this side alone. `theirs` still has the bytes that `begins` has.
  Torturer(Context& context, const Peer& peer, const Region& mine, const RemoteRegion& theirs,
           const std::vector<std::byte>& begins, uint64_t seed);

  // `count` operations and the end of each; `before` is called ahead of each of them. Empty, or
  // what was wrong. Stops when the peer is lost: then every operation has ended with kPeerLost.
  std::string burst(uint64_t count, const std::function<void(uint64_t)>& before = {});
  bool lost() const { return lost_; }

  // What the peer's region holds, and what it was told of it.
  const std::vector<std::byte>& model() const { return model_; }
  uint64_t signalled() const { return signalled_; }
  uint64_t notified() const { return notified_; }
  uint64_t noted() const { return noted_; }  // sum of what the notifications say
  // Operations by kind, for people.
  std::string summary() const;

 private:
  // From and to are offsets in a zone of the one region and of the other.
  struct Piece {
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t bytes = 0;
  };
  struct Step {
    Transfer transfer{};
    std::vector<Piece> pieces{};
    uint64_t signal = 0;
    bool notifies = false;
    uint64_t note = 0;
  };
  struct Flight {
    bool isPut = true;
    bool cancelled = false;
    size_t zone = 0;
    std::vector<Step> steps{};  // in order
    Plan plan{};                // whose post it is
  };

  uint64_t below(uint64_t limit) { return random_() % limit; }
  uint64_t someBytes();
  std::vector<Piece> somePieces(size_t zone);
  std::vector<Block> blocksOf(bool isPut, const std::vector<Piece>& pieces) const;
  void fillSome(size_t zone);

  Result<Flight> list(bool isPut, size_t zone);
  Result<Flight> strided(bool isPut, size_t zone);
  Result<Flight> indexed(bool isPut, size_t zone);
  Result<Flight> prepared(bool isPut, size_t zone);
  Result<Flight> ordered(size_t zone);
  Status temporary(size_t zone);

  // Waits, and brings the model up to date.
  Status end(Flight& flight);
  Status again(const Flight& flight, const Step& step);
  void apply(bool isPut, const std::vector<Piece>& pieces);
  Status endSome(size_t most);
  std::string wrongHere() const;

  Context& context_;
  const Peer peer_;
  const Region mine_;
  const RemoteRegion theirs_;
  std::mt19937_64 random_;
  std::vector<std::byte> model_;   // of theirs
  std::vector<std::byte> mirror_;  // of mine
  Plan puts_;                      // by block number
  Plan gets_;
  std::unique_ptr<HostStream> stream_;
  std::vector<Flight> flights_;
  std::vector<size_t> free_;
  uint64_t signalled_ = 0;
  uint64_t notified_ = 0;
  uint64_t noted_ = 0;
  uint64_t operations_[6] = {};
  uint64_t cancelled_ = 0;
  uint64_t bytes_ = 0;
  bool lost_ = false;
};

}  // namespace peerlane
