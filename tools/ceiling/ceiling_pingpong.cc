// SPDX-License-Identifier: Apache-2.0
#include "tools/ceiling/ceiling_pingpong.h"

#include <cstring>

namespace peerlane::bench {
namespace {

Status hit(const RawGame& game, uint64_t round) {
  const RawPiece& piece =
      game.out.size() == 1 ? game.out[0] : game.out[(round - 1) % game.out.size()];
  if (game.stamp) std::memcpy(piece.local, &round, std::min(sizeof(round), piece.bytes));
  PEERLANE_RETURN_IF_ERROR(copyPieces(game.way, game.other, {&piece, 1}, true));
  game.theirs->store(game.base + round, std::memory_order_release);
  return Status::ok();
}

Status await(const RawGame& game, uint64_t round) {
  SpinLimit limit;
  while (game.mine->load(std::memory_order_acquire) < game.base + round)
    if (limit.over()) return spinOver();
  return Status::ok();
}

}  // namespace

Status rawServe(const RawGame& game, uint64_t warmup, uint64_t samples, uint64_t perSample,
                Samples& out) {
  uint64_t round = 0;
  const auto play = [&](uint64_t count) -> Status {
    for (uint64_t i = 0; i < count; ++i) {
      ++round;
      PEERLANE_RETURN_IF_ERROR(hit(game, round));
      PEERLANE_RETURN_IF_ERROR(await(game, round));
    }
    return Status::ok();
  };
  PEERLANE_RETURN_IF_ERROR(play(warmup));
  for (uint64_t i = 0; i < samples; ++i) {
    const Clock::time_point start = Clock::now();
    PEERLANE_RETURN_IF_ERROR(play(perSample));
    out.add(microsecondsSince(start) / 2 / static_cast<double>(perSample));
  }
  return Status::ok();
}

Status rawReturn(const RawGame& game, uint64_t rounds) {
  for (uint64_t round = 1; round <= rounds; ++round) {
    PEERLANE_RETURN_IF_ERROR(await(game, round));
    PEERLANE_RETURN_IF_ERROR(hit(game, round));
  }
  return Status::ok();
}

}  // namespace peerlane::bench
