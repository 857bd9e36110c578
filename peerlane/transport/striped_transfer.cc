// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/striped_transfer.h"

#include <algorithm>
#include <limits>

namespace peerlane {
namespace {

// Where the memory of the peer begins at a page, parts do.
constexpr uint64_t kGrain = 64 * 1024;

}  // namespace

StripedTransfer::StripedTransfer(std::span<FrameAgent* const> agents) {
  for (FrameAgent* agent : agents) stripes_.emplace_back(*agent);
}

void StripedTransfer::Stripe::add(Verb verb, const Piece* pieces, uint32_t count) {
  MailboxEntry* const entry = mailbox.claim();  // three at most
  entry->verb = verb;
  entry->pieces = pieces;
  entry->pieceCount = count;
}

Piece* StripedTransfer::Stripe::cut(const Piece& whole, uint64_t offset, uint64_t bytes) {
  Piece& part = cuts[cutCount++];
  part = {whole.local + offset, whole.remote, whole.remoteOffset + offset, bytes};
  return &part;
}

void StripedTransfer::begin(AgentWork& work, uint64_t bytes, uint32_t parts) {
  work_ = &work;
  parts_ = parts;
  const Verb verb = work.entry->verb;
  const std::span<const Piece> pieces(work.entry->pieces, work.entry->pieceCount);
  const uint64_t grains = bytes / kGrain;
  size_t at = 0;
  uint64_t offset = 0;  // in pieces[at]
  for (uint32_t part = 0; part < parts; ++part) {
    Stripe& stripe = stripes_[part];
    stripe.mailbox.resetCode();
    stripe.mailbox.clearAbort();
    stripe.cutCount = 0;
    uint64_t left = (grains * (part + 1) / parts - grains * part / parts) * kGrain;
    if (part + 1 == parts) left = std::numeric_limits<uint64_t>::max();  // what is no whole grain
    while (left != 0 && at < pieces.size()) {
      const size_t first = at;
      for (; offset == 0 && at < pieces.size() && pieces[at].bytes <= left; ++at)
        left -= pieces[at].bytes;
      if (at != first) {
        stripe.add(verb, &pieces[first], static_cast<uint32_t>(at - first));
        continue;
      }
      const uint64_t size = std::min(pieces[at].bytes - offset, left);
      stripe.add(verb, stripe.cut(pieces[at], offset, size), 1);
      left -= size;
      offset += size;
      if (offset == pieces[at].bytes) {
        offset = 0;
        ++at;
      }
    }
    stripe.mailbox.ring();
  }
}

void StripedTransfer::abort(Code code) {
  for (uint32_t part = 0; part < parts_; ++part) stripes_[part].mailbox.abort(code);
}

bool StripedTransfer::hasEnded() const {
  return std::all_of(stripes_.begin(), stripes_.begin() + parts_,
                     [](const Stripe& stripe) { return stripe.mailbox.idle(); });
}

Code StripedTransfer::code() const {
  Code first = Code::kOk;
  for (uint32_t part = 0; part < parts_ && first == Code::kOk; ++part)
    first = stripes_[part].mailbox.code();
  return first;
}

}  // namespace peerlane
