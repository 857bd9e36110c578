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

template <typename Copy>
void copyRange(CopyInstruction instruction, std::span<const MappedPiece> pieces, Position at,
               Position end, const Copy& copy) {
  const auto part = [&](const MappedPiece& piece, uint64_t from, uint64_t to) {
    copy(instruction, piece.to + from, piece.from + from, to - from);
  };
  for (; at.piece < end.piece; at = {at.piece + 1, 0})
    part(pieces[at.piece], at.offset, pieces[at.piece].bytes);
  if (end.offset > at.offset) part(pieces[at.piece], at.offset, end.offset);
  orderCopies(instruction);
}

// Pieces cut into parts of the same size, but the last, which has the rest; `probes` of a size of
// their own before them.
class Cut {
 public:
  Cut(std::span<const MappedPiece> pieces, uint64_t bytes, uint32_t parts, uint32_t probes = 0,
      uint64_t probeBytes = 0)
      : pieces_(pieces),
        count_(probes + parts),
        probes_(probes),
        probeBytes_(probeBytes),
        partBytes_((bytes - probes * probeBytes) / parts),
        lastBytes_(bytes - probes * probeBytes - (parts - 1) * partBytes_) {
    borders_[0] = {};
    for (uint32_t i = 1; i < count_; ++i)
      borders_[i] = advanced(pieces, borders_[i - 1], bytesOf(i - 1));
    borders_[count_] = {pieces.size(), 0};
  }
  uint32_t count() const { return count_; }
  uint64_t bytesOf(uint32_t part) const {
    return part < probes_ ? probeBytes_ : part + 1 == count_ ? lastBytes_ : partBytes_;
  }
  template <typename Copy>
  void copy(CopyInstruction instruction, uint32_t part, const Copy& copy) const {
    copyRange(instruction, pieces_, borders_[part], borders_[part + 1], copy);
  }

 private:
  const std::span<const MappedPiece> pieces_;
  const uint32_t count_;
  const uint32_t probes_;
  const uint64_t probeBytes_;
  const uint64_t partBytes_;
  const uint64_t lastBytes_;
  std::array<Position, TimedCopy::kMostSlices + 1> borders_;
};

}  // namespace

Result<HostCopier> HostCopier::create(const Config& config, uint32_t threads, Metrics& metrics,
                                      std::shared_ptr<CopyTrials> trials) {
  HostCopier copier;
  PEERLANE_ASSIGN(const TuneFile file, TuneFile::load(config.tuneFile));
  PEERLANE_ASSIGN(copier.thresholds_, CopyThresholds::from(file));
  copier.least_ = copier.thresholds_ ? copier.thresholds_->least() : CopyTrials::kLeastBytes;
  if (threads != 0) {
    PEERLANE_ASSIGN(copier.team_, CopyTeam::create(threads, metrics));
    copier.least_ = std::min(copier.least_, 2 * CopyTeam::kLeastPartBytes);
  }
  if (copier.thresholds_) return copier;
  copier.trials_ = trials         ? std::move(trials)
                   : copier.team_ ? std::make_shared<CopyTrials>()
                                  : CopyTrials::ofProcess();
  return copier;
}

void HostCopier::copy(const WholeCopy& whole, std::span<const MappedPiece> pieces,
                      uint64_t bytes) const {
  const uint64_t pieceBytes = whole.bytes / whole.pieces;
  if (thresholds_) return copyBy(thresholds_->choose(whole.bytes, pieceBytes), pieces, bytes);
  if (!trials_ || whole.bytes < CopyTrials::kLeastBytes || pieceBytes < CopyTrials::kLeastPiece)
    return copyBy(CopyInstruction::kMemcpy, pieces, bytes);
  const CopyTrials::Kind kind =
      trials_->kindOf(whole.bytes, pieceBytes, pieces.front().to, pieces.front().from);
  if (trials_->isDecided(kind) || !copyTimed(whole, kind, pieces, bytes))
    copyBy(trials_->best(kind), pieces, bytes);
}

// False where it did not copy: a part that says nothing, or another copy is being timed.
bool HostCopier::copyTimed(const WholeCopy& whole, CopyTrials::Kind kind,
                           std::span<const MappedPiece> pieces, uint64_t bytes) const {
  if (bytes < TimedCopy::kLeastProbeBytes) return false;
  TimedCopy timed(*trials_, kind);
  if (!timed.isOn()) return false;
  const uint32_t parts = partsOf(bytes);
  if (timed.rests(bytes, whole.bytes)) {
    if (parts != 1) return false;
    copyRange(trials_->best(kind), pieces, {}, {pieces.size(), 0}, trials_->machine().copy);
    return true;
  }
  const uint64_t atOnce = std::min(bytes / parts, whole.bytes / whole.pieces);
  const uint64_t probeBytes = timed.probeBytes(bytes, atOnce);
  const Cut cut(pieces, bytes, parts, probeBytes != 0 ? TimedCopy::kProbes : 0, probeBytes);
  timed.begin(cut.count());
  const auto slice = [&](uint32_t part, uint64_t& pages) {
    timed.carryOut(part, cut.bytesOf(part), pages, [&](CopyInstruction instruction) {
      cut.copy(instruction, part, trials_->machine().copy);
    });
  };
  if (parts == 1) {
    uint64_t pages = timed.pages();
    for (uint32_t part = 0; part < cut.count(); ++part) slice(part, pages);
  } else {
    team_->share(cut.count(), pieces.front().to, [&](uint32_t part) {
      uint64_t pages = timed.pages();
      slice(part, pages);
    });
  }
  timed.end(bytes, whole.bytes);
  return true;
}

void HostCopier::copyBy(CopyInstruction instruction, std::span<const MappedPiece> pieces,
                        uint64_t bytes) const {
  const uint32_t parts = partsOf(bytes);
  if (parts == 1) return copyRange(instruction, pieces, {}, {pieces.size(), 0}, copyBytes);
  const Cut cut(pieces, bytes, parts);
  team_->share(parts, pieces.front().to,
               [&](uint32_t part) { cut.copy(instruction, part, copyBytes); });
}

std::string HostCopier::explain() const {
  return (thresholds_ ? thresholds_->toString()
          : trials_   ? trials_->toString()
                      : "memcpy") +
         (team_ ? "; " + std::to_string(team_->threads()) + " threads help" : std::string());
}

}  // namespace peerlane::cpu
