// SPDX-License-Identifier: Apache-2.0
#include "tests/fake/software_hca/hca_placement.h"

#include <algorithm>

#include "tests/fake/software_hca/hca_context.h"
#include "tests/fake/software_hca/hca_queue_pair.h"

namespace peerlane::softhca {
namespace {

// Pieces smaller than the path MTU, so that one packet is not placed at once either; what is cut is
// aligned to it, so that words stay whole.
constexpr size_t kPieceBytes = 512;
constexpr size_t kMostWaiting = 64;

}  // namespace

bool Placement::place(const Piece& piece) {
  const Regions& regions = pair_.context.regions;
  const Region* region = regions.find(pair_.domain(), piece.key, piece.address, piece.bytes.size(),
                                      IBV_ACCESS_REMOTE_WRITE);
  if (region == nullptr) return false;
  regions.place(*region, piece.address, piece.bytes.data(), piece.bytes.size());
  return true;
}

bool Placement::write(uint32_t key, uint64_t address, const uint8_t* bytes, size_t count,
                      uint64_t now) {
  Context& context = pair_.context;
  const Region* region =
      context.regions.find(pair_.domain(), key, address, count, IBV_ACCESS_REMOTE_WRITE);
  if (region == nullptr) return false;
  if (context.settings.order == Order::kIbta) {
    context.regions.place(*region, address, bytes, count);
    return true;
  }
  const bool mayOvertake = context.settings.order == Order::kAdaptive || region->isRelaxed();
  if (pieces_.empty()) due_ = now + context.random() % (context.settings.windowNs + 1);
  for (size_t done = 0; done < count;) {
    const size_t part = std::min(count - done, kPieceBytes - (address + done) % kPieceBytes);
    pieces_.push_back(
        {key, mayOvertake, false, address + done, {bytes + done, bytes + done + part}});
    done += part;
  }
  bool isGood = true;
  while (pieces_.size() > kMostWaiting) isGood = placeOne() && isGood;
  return isGood;
}

bool Placement::placeOne() {
  std::vector<size_t> candidates = {0};
  for (size_t i = 1; i < pieces_.size(); ++i)
    if (pieces_[i].mayOvertake) candidates.push_back(i);
  return placeAt(candidates[pair_.context.random() % candidates.size()]);
}

bool Placement::placeAt(size_t index) {
  const bool isGood = place(pieces_[index]);
  pieces_.erase(pieces_.begin() + static_cast<ptrdiff_t>(index));
  return isGood;
}

void Placement::acknowledge() {
  for (Piece& piece : pieces_) piece.isAcknowledged = true;
}

bool Placement::flushAcknowledged() {
  bool isGood = true;
  for (size_t i = 0; i < pieces_.size();)
    if (pieces_[i].isAcknowledged)
      isGood = placeAt(i) && isGood;
    else
      ++i;
  return isGood;
}

bool Placement::flush() {
  bool isGood = true;
  while (!pieces_.empty()) isGood = placeOne() && isGood;
  return isGood;
}

bool Placement::turn(uint64_t now) {
  if (pieces_.empty() || now < due_) return true;
  // One now, the others later: what is visible half way stays so for a while.
  const bool isGood = placeOne();
  due_ = now + pair_.context.random() % (pair_.context.settings.windowNs / 8 + 1);
  return isGood;
}

}  // namespace peerlane::softhca
