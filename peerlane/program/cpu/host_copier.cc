// SPDX-License-Identifier: Apache-2.0
#include "peerlane/program/cpu/host_copier.h"

#include <algorithm>
#include <array>
#include <utility>

#include "peerlane/core/tune_file.h"

namespace peerlane::cpu {
namespace {

// A place in a list of pieces.
struct Position {
  size_t piece = 0;
  uint64_t offset = 0;
};

Position advanced(std::span<const MappedPiece> pieces, Position at, uint64_t bytes) {
  while (at.piece < pieces.size() && bytes >= pieces[at.piece].bytes - at.offset) {
    bytes -= pieces[at.piece].bytes - at.offset;
    at = {at.piece + 1, 0};
  }
  at.offset += bytes;
  return at;
}

void copyRange(CopyInstruction instruction, std::span<const MappedPiece> pieces, Position at,
               Position end) {
  const auto part = [&](const MappedPiece& piece, uint64_t from, uint64_t to) {
    copyBytes(instruction, piece.to + from, piece.from + from, to - from);
  };
  for (; at.piece < end.piece; at = {at.piece + 1, 0})
    part(pieces[at.piece], at.offset, pieces[at.piece].bytes);
  if (end.offset > at.offset) part(pieces[at.piece], at.offset, end.offset);
  orderCopies(instruction);
}

}  // namespace

Result<HostCopier> HostCopier::create(const Config& config, uint32_t threads, Metrics& metrics) {
  HostCopier copier;
  PEERLANE_ASSIGN(const TuneFile file, TuneFile::load(config.tuneFile));
  PEERLANE_ASSIGN(copier.choice_, CopyChoice::from(file));
  copier.least_ = copier.choice_.least();
  if (threads == 0) return copier;
  PEERLANE_ASSIGN(copier.team_, CopyTeam::create(threads, metrics));
  copier.least_ = std::min(copier.least_, 2 * CopyTeam::kLeastPartBytes);
  return copier;
}

void HostCopier::copy(CopyInstruction instruction, std::span<const MappedPiece> pieces,
                      uint64_t bytes) const {
  const Position end{pieces.size(), 0};
  const uint32_t parts = team_ ? team_->partsOf(bytes) : 1;
  if (parts == 1) return copyRange(instruction, pieces, {}, end);
  std::array<Position, CopyTeam::kMostParts + 1> borders;
  borders[0] = {};
  for (uint32_t i = 1; i < parts; ++i) borders[i] = advanced(pieces, borders[i - 1], bytes / parts);
  borders[parts] = end;
  team_->share(parts, pieces.front().to, [&](uint32_t part) {
    copyRange(instruction, pieces, borders[part], borders[part + 1]);
  });
}

std::string HostCopier::explain() const {
  return choice_.toString() +
         (team_ ? "; " + std::to_string(team_->threads()) + " threads help" : std::string());
}

}  // namespace peerlane::cpu
